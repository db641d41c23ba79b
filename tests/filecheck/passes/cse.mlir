// RUN: detent-opt %s -p selir-cse | filecheck %s

// Equal values are computed once, operands of a commutative operation in any order; what a condition computes
// itself never merges with a selection value, nor with what another condition computes.
// CHECK-LABEL: "conditions"
selir.program "conditions" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %c = selir.constant <992> : !selir.int
  // CHECK: [[SEL:%.*]] = selir.le %b, %c
  %x = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
  %y = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
  // CHECK-NEXT: [[SUM:%.*]] = selir.add %b, %c
  %s = selir.add %b, %c : (!selir.int, !selir.int) -> !selir.int
  %t = selir.add %c, %b : (!selir.int, !selir.int) -> !selir.int
  // CHECK-NEXT: selir.require "one" {
  // CHECK-NEXT: [[OWN:%.*]] = selir.le %b, %c
  // CHECK-NEXT: [[AND:%.*]] = selir.and [[OWN]], [[OWN]]
  // CHECK-NEXT: selir.yield [[AND]]
  selir.require "one" {
    %p = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
    %q = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
    %a = selir.and %p, %q : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %a : !selir.bool
  }
  // CHECK: selir.require "two" {
  // CHECK-NEXT: [[OTHER:%.*]] = selir.le %b, %c
  // CHECK-NEXT: selir.yield [[OTHER]]
  selir.require "two" {
    %p = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
    selir.yield %p : !selir.bool
  }
  // CHECK: selir.points ["x", "y", "s", "t"] [[SEL]], [[SEL]], [[SUM]], [[SUM]]
  selir.points ["x", "y", "s", "t"] %x, %y, %s, %t : !selir.bool, !selir.bool, !selir.int, !selir.int
}
