// RUN: detent-opt %s -p selir-dce | filecheck %s

// Inputs and knobs are the program's signature and stay; scalars that nothing uses go, also in conditions.
// CHECK-LABEL: "dead"
selir.program "dead" family "demo" {
  // CHECK: selir.input "unused"
  %u = selir.input "unused" runtime : !selir.int
  // CHECK-NEXT: selir.knob "k"
  %k = selir.knob "k" <[1, 2]> default <1> : !selir.int
  // CHECK-NEXT: selir.constant <1>
  %c = selir.constant <1> : !selir.int
  %d = selir.add %u, %c : (!selir.int, !selir.int) -> !selir.int
  %e = selir.mul %d, %d : (!selir.int, !selir.int) -> !selir.int
  // CHECK-NEXT: selir.require "m" {
  // CHECK-NEXT: selir.gt
  // CHECK-NEXT: selir.yield
  selir.require "m" {
    %dead = selir.add %u, %k : (!selir.int, !selir.int) -> !selir.int
    %p = selir.gt %u, %c : (!selir.int, !selir.int) -> !selir.bool
    selir.yield %p : !selir.bool
  }
  // CHECK-NEXT: }
  // CHECK-NEXT: selir.points
  selir.points ["c"] %c : !selir.int
}
