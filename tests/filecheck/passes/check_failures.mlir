// RUN: detent-opt %s -p selir-check-failures --split-input-file --verify-diagnostics | filecheck %s

// The guard excludes the divisor 0: nothing is reported, nothing is changed.
// CHECK-LABEL: "guarded"
// CHECK: selir.floordiv %c, %b when %p
selir.program "guarded" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %zero = selir.constant <0> : !selir.int
  %c = selir.constant <100> : !selir.int
  selir.assume "bounds" {
    %lo = selir.le %zero, %b : (!selir.int, !selir.int) -> !selir.bool
    %hi = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
    %in = selir.and %lo, %hi : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %in : !selir.bool
  }
  %p = selir.gt %b, %zero : (!selir.int, !selir.int) -> !selir.bool
  %d = selir.floordiv %c, %b when %p : (!selir.int, !selir.int, !selir.bool) -> !selir.int
  %r = selir.select %p, %d, %zero : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  selir.points ["r"] %r : !selir.int
}

// -----

// CHECK: division by zero in floordiv d at b=0
selir.program "reachable" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %zero = selir.constant <0> : !selir.int
  %c = selir.constant <100> : !selir.int
  selir.assume "bounds" {
    %lo = selir.le %zero, %b : (!selir.int, !selir.int) -> !selir.bool
    %hi = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
    %in = selir.and %lo, %hi : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %in : !selir.bool
  }
  %d = selir.floordiv %c, %b : (!selir.int, !selir.int) -> !selir.int
  selir.points ["d"] %d : !selir.int
}
