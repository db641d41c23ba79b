// RUN: detent-opt %s | detent-opt | filecheck %s
// RUN: detent-opt %s --print-op-generic | detent-opt | filecheck %s

// CHECK-LABEL: selir.program "bound" family "demo" {
selir.program "bound" family "demo" {
  // CHECK-NEXT: %b = selir.input "b" unpinnable : !selir.int
  %b = selir.input "b" unpinnable : !selir.int
  // CHECK-NEXT: %r = selir.input "r" request : !selir.float
  %r = selir.input "r" request : !selir.float
  // CHECK-NEXT: %g = selir.input "g" runtime : !selir.bool
  %g = selir.input "g" runtime : !selir.bool
  // CHECK-NEXT: %k = selir.knob "stride" <[1, 2, 4]> default <2> : !selir.int
  %k = selir.knob "stride" <[1, 2, 4]> default <2> : !selir.int
  // CHECK-NEXT: %c = selir.constant <-10> : !selir.int
  %c = selir.constant <-10> : !selir.int
  // CHECK-NEXT: selir.constant <0.5> : !selir.f32
  %h = selir.constant <0.5> : !selir.f32
  // CHECK-NEXT: selir.constant <-0.0> : !selir.float
  %z = selir.constant <-0.0> : !selir.float
  // CHECK-NEXT: selir.constant <1.0e-300> : !selir.float
  %t = selir.constant <1.0e-300> : !selir.float
  // CHECK-NEXT: selir.constant <inf> : !selir.float
  %i = selir.constant <inf> : !selir.float
  // CHECK-NEXT: selir.constant <true> : !selir.bool
  %y = selir.constant <true> : !selir.bool
  // CHECK-NEXT: selir.constant <"a {{.*}}quoted{{.*}} word"> : !selir.str
  %s = selir.constant <"a \"quoted\" word"> : !selir.str
  // CHECK-NEXT: selir.constant <none> : !selir.none
  %n = selir.constant <none> : !selir.none
  // CHECK-NEXT: %sum = selir.add %b, %c : (!selir.int, !selir.int) -> !selir.int
  %sum = selir.add %b, %c : (!selir.int, !selir.int) -> !selir.int
  // CHECK-NEXT: %less = selir.lt %sum, %k : (!selir.int, !selir.int) -> !selir.bool
  %less = selir.lt %sum, %k : (!selir.int, !selir.int) -> !selir.bool
  // CHECK-NEXT: %q = selir.floordiv %sum, %b when %less : (!selir.int, !selir.int, !selir.bool) -> !selir.int
  %q = selir.floordiv %sum, %b when %less : (!selir.int, !selir.int, !selir.bool) -> !selir.int
  // CHECK-NEXT: %f = selir.f32 %q : (!selir.int) -> !selir.f32
  %f = selir.f32 %q : (!selir.int) -> !selir.f32
  // CHECK-NEXT: %up = selir.ceil %f : (!selir.f32) -> !selir.int
  %up = selir.ceil %f : (!selir.f32) -> !selir.int
  // CHECK-NEXT: %row = selir.lookup %up in <{{\[\[}}1, "a"], [2, "b"]]> : (!selir.int) -> !selir.str
  %row = selir.lookup %up in <[[1, "a"], [2, "b"]]> : (!selir.int) -> !selir.str
  // CHECK-NEXT: %choice = selir.select %less, %sum, %q : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  %choice = selir.select %less, %sum, %q : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  // CHECK-NEXT: %either = selir.if %g : !selir.bool -> !selir.int {
  // CHECK-NEXT:   selir.yield %sum : !selir.int
  // CHECK-NEXT: } else {
  // CHECK-NEXT:   selir.yield %q : !selir.int
  // CHECK-NEXT: }
  %either = selir.if %g : !selir.bool -> !selir.int {
    selir.yield %sum : !selir.int
  } else {
    selir.yield %q : !selir.int
  }
  // CHECK-NEXT: selir.assume "b is small" {
  // CHECK-NEXT:   [[OWN:%.*]] = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
  // CHECK-NEXT:   selir.yield [[OWN]] : !selir.bool
  // CHECK-NEXT: }
  selir.assume "b is small" {
    %own = selir.le %b, %c : (!selir.int, !selir.int) -> !selir.bool
    selir.yield %own : !selir.bool
  }
  // CHECK-NEXT: selir.require "less" {
  // CHECK-NEXT:   selir.yield %less : !selir.bool
  // CHECK-NEXT: }
  selir.require "less" {
    selir.yield %less : !selir.bool
  }
  // CHECK-NEXT: %p = selir.pin "choice" %choice : !selir.int -> !selir.int
  %p = selir.pin "choice" %choice : !selir.int -> !selir.int
  // CHECK-NEXT: selir.points ["p", "row"] %p, %row : !selir.int, !selir.str
  selir.points ["p", "row"] %p, %row : !selir.int, !selir.str
}
