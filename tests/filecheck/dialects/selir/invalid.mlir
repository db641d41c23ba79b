// RUN: detent-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: operand 1 of 'selir.add' is used before it is defined
selir.program "order" family "demo" {
  %b = selir.input "b" runtime : !selir.int
  %s = selir.add %b, %late : (!selir.int, !selir.int) -> !selir.int
  %late = selir.constant <1> : !selir.int
  selir.points ["s"] %s : !selir.int
}

// -----

// CHECK: 'selir.add' takes numbers of one type, not int, float
selir.program "types" family "demo" {
  %b = selir.input "b" runtime : !selir.int
  %f = selir.constant <1.0> : !selir.float
  %s = selir.add %b, %f : (!selir.int, !selir.float) -> !selir.int
  selir.points ["s"] %s : !selir.int
}

// -----

// CHECK: 'selir.div' gives !selir.float on these operands, not !selir.int
selir.program "result" family "demo" {
  %b = selir.input "b" runtime : !selir.int
  %s = selir.div %b, %b : (!selir.int, !selir.int) -> !selir.int
  selir.points ["s"] %s : !selir.int
}

// -----

// CHECK: 'a' is not a constant of type !selir.int
selir.program "constant" family "demo" {
  %s = selir.constant <"a"> : !selir.int
  selir.points ["s"] %s : !selir.int
}

// -----

// CHECK: two inputs of a program have the same name
selir.program "inputs" family "demo" {
  %a = selir.input "b" runtime : !selir.int
  %b = selir.input "b" runtime : !selir.int
  selir.points ["s"] %a : !selir.int
}

// -----

// CHECK: two selection points have the same name
selir.program "points" family "demo" {
  %a = selir.input "a" runtime : !selir.int
  selir.points ["s", "s"] %a, %a : !selir.int, !selir.int
}

// -----

// CHECK: a knob's values are distinct and its default is one of them
selir.program "knob" family "demo" {
  %k = selir.knob "k" <[1, 2]> default <3> : !selir.int
  selir.points ["s"] %k : !selir.int
}

// -----

// CHECK: the else region of 'selir.if' yields other types than its results
selir.program "branch" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %c = selir.constant <1> : !selir.int
  %r = selir.if %g : !selir.bool -> !selir.int {
    selir.yield %c : !selir.int
  } else {
    selir.yield %g : !selir.bool
  }
  selir.points ["r"] %r : !selir.int
}

// -----

// CHECK: the region of 'selir.require' yields a bool
selir.program "condition" family "demo" {
  %c = selir.constant <1> : !selir.int
  selir.require "m" {
    selir.yield %c : !selir.int
  }
  selir.points ["c"] %c : !selir.int
}

// -----

// CHECK: a lookup's keys are distinct ints, bools or strings of one type
selir.program "lookup" family "demo" {
  %c = selir.constant <1> : !selir.int
  %l = selir.lookup %c in <[[1, 2], [true, 3]]> : (!selir.int) -> !selir.int
  selir.points ["l"] %l : !selir.int
}

// -----

// CHECK: a pin has the type of the value it replaces
selir.program "pin" family "demo" {
  %b = selir.input "b" runtime : !selir.int
  %p = selir.pin "p" %b : !selir.int -> !selir.bool
  selir.points ["p"] %p : !selir.bool
}
