// RUN: detent-opt %s -p 'selir-constant-fold,selir-dce' | filecheck %s

// Folding follows the semantics table: Python's floor division, C's single precision.
// CHECK-LABEL: "fold"
selir.program "fold" family "demo" {
  %b = selir.input "b" runtime : !selir.int
  %m = selir.constant <-7> : !selir.int
  %t = selir.constant <2> : !selir.int
  // CHECK-DAG: [[Q:%.*]] = selir.constant <-4> : !selir.int
  %q = selir.floordiv %m, %t : (!selir.int, !selir.int) -> !selir.int
  %p = selir.constant <0.1> : !selir.float
  // CHECK-DAG: [[F:%.*]] = selir.constant <0.10000000149011612> : !selir.f32
  %f = selir.f32 %p : (!selir.float) -> !selir.f32
  // CHECK-DAG: [[S:%.*]] = selir.constant <0.20000000298023224> : !selir.f32
  %s = selir.add %f, %f : (!selir.f32, !selir.f32) -> !selir.f32
  // Nothing but constants is folded: equal arms stay.
  // CHECK: [[SEL:%.*]] = selir.select
  %c = selir.gt %b, %t : (!selir.int, !selir.int) -> !selir.bool
  %e = selir.select %c, %b, %b : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  // CHECK: selir.points ["q", "f", "s", "e"] [[Q]], [[F]], [[S]], [[SEL]]
  selir.points ["q", "f", "s", "e"] %q, %f, %s, %e : !selir.int, !selir.f32, !selir.f32, !selir.int
}
