// RUN: detent-opt %s --pass-pipeline 'builtin.module(selir-control-dependence)' | filecheck %s

// A branch's condition becomes an operand, what can fail is guarded, and a condition of the program that
// stands in a branch is demanded only there.
// CHECK-LABEL: "branch"
selir.program "branch" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %b = selir.input "b" runtime : !selir.int
  %c = selir.constant <7> : !selir.int
  // CHECK-NOT: selir.if
  // CHECK: [[DIV:%.*]] = selir.floordiv %c, %b when %g
  // CHECK: selir.require "positive" {
  // CHECK-NEXT: [[OK:%.*]] = selir.gt %b, %c
  // CHECK-NEXT: [[OUT:%.*]] = selir.not %g
  // CHECK-NEXT: [[ALL:%.*]] = selir.or [[OUT]], [[OK]]
  // CHECK-NEXT: selir.yield [[ALL]]
  // CHECK: [[MOD:%.*]] = selir.mod %c, %b when %{{.*}} :
  // CHECK: [[R:%.*]] = selir.select %g, [[DIV]], [[MOD]]
  %r = selir.if %g : !selir.bool -> !selir.int {
    %d = selir.floordiv %c, %b : (!selir.int, !selir.int) -> !selir.int
    selir.require "positive" {
      %p = selir.gt %b, %c : (!selir.int, !selir.int) -> !selir.bool
      selir.yield %p : !selir.bool
    }
    selir.yield %d : !selir.int
  } else {
    %m = selir.mod %c, %b : (!selir.int, !selir.int) -> !selir.int
    selir.yield %m : !selir.int
  }
  // CHECK: selir.points ["r"] [[R]]
  selir.points ["r"] %r : !selir.int
}

// Nested branches: the guard of the inner one is the conjunction of both conditions.
// CHECK-LABEL: "nested"
selir.program "nested" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %h = selir.input "h" runtime : !selir.bool
  %b = selir.input "b" runtime : !selir.int
  %c = selir.constant <7> : !selir.int
  // CHECK: [[BOTH:%.*]] = selir.and %g, %h
  // CHECK: [[DIV:%.*]] = selir.floordiv %c, %b when [[BOTH]]
  // CHECK: [[IN:%.*]] = selir.select %h, [[DIV]], %c
  // CHECK: selir.select %g, [[IN]], %b
  %r = selir.if %g : !selir.bool -> !selir.int {
    %i = selir.if %h : !selir.bool -> !selir.int {
      %d = selir.floordiv %c, %b : (!selir.int, !selir.int) -> !selir.int
      selir.yield %d : !selir.int
    } else {
      selir.yield %c : !selir.int
    }
    selir.yield %i : !selir.int
  } else {
    selir.yield %b : !selir.int
  }
  selir.points ["r"] %r : !selir.int
}
