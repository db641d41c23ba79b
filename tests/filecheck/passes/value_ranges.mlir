// RUN: detent-opt %s -p 'selir-min-cut,selir-value-ranges' | filecheck %s

// Three tiles, two of which fit for every input that the assume allows; the knob doubles the count.
// CHECK: selir.program "tiles" family "demo" attributes
// CHECK-SAME: "candidates": 6
// CHECK-SAME: "legal": 4
// CHECK-SAME: "sampled": 0
selir.program "tiles" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %k = selir.knob "unroll" <[1, 2]> default <1> : !selir.int
  %one = selir.constant <1> : !selir.int
  %max = selir.constant <512> : !selir.int
  %t64 = selir.constant <64> : !selir.int
  %t128 = selir.constant <128> : !selir.int
  %t256 = selir.constant <256> : !selir.int
  selir.assume "bounds" {
    %lo = selir.le %one, %b : (!selir.int, !selir.int) -> !selir.bool
    %hi = selir.le %b, %max : (!selir.int, !selir.int) -> !selir.bool
    %in = selir.and %lo, %hi : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %in : !selir.bool
  }
  %s = selir.lt %b, %t64 : (!selir.int, !selir.int) -> !selir.bool
  %m = selir.lt %b, %t128 : (!selir.int, !selir.int) -> !selir.bool
  %big = selir.select %m, %t128, %t256 : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  %tile = selir.select %s, %t64, %big : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  // CHECK: selir.pin "tile"
  // CHECK-SAME: [64, 128, 256]
  selir.require "at most 512 rows a tile" {
    %rows = selir.mul %tile, %one : (!selir.int, !selir.int) -> !selir.int
    %sum = selir.add %rows, %b : (!selir.int, !selir.int) -> !selir.int
    %top = selir.constant <640> : !selir.int
    %ok = selir.le %sum, %top : (!selir.int, !selir.int) -> !selir.bool
    selir.yield %ok : !selir.bool
  }
  selir.points ["tile", "unroll"] %tile, %k : !selir.int, !selir.int
}
