// RUN: detent-opt %s -p 'selir-min-cut' | filecheck %s
// RUN: detent-opt %s -p 'selir-min-cut{control=false}' | filecheck %s --check-prefix=DATA

// Two points hang on %rows: one pin. The condition that names the input keeps the true input.
// CHECK-LABEL: "funnel"
// DATA-LABEL: "funnel"
selir.program "funnel" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %k = selir.constant <8> : !selir.int
  %rows = selir.mul %b, %k : (!selir.int, !selir.int) -> !selir.int
  // CHECK: [[PIN:%.*]] = selir.pin "rows" %rows
  // CHECK: selir.add [[PIN]],
  %x = selir.add %rows, %k : (!selir.int, !selir.int) -> !selir.int
  %y = selir.sub %rows, %k : (!selir.int, !selir.int) -> !selir.int
  // CHECK: selir.require "input" {
  // CHECK-NEXT: selir.gt %b,
  selir.require "input" {
    %p = selir.gt %b, %k : (!selir.int, !selir.int) -> !selir.bool
    selir.yield %p : !selir.bool
  }
  selir.points ["x", "y"] %x, %y : !selir.int, !selir.int
}

// A value that a condition names is a sink too: the pin falls on %small, not on %path, so that the condition
// reads the value as pinned.
// CHECK-LABEL: "named"
selir.program "named" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %k = selir.constant <8> : !selir.int
  %s = selir.constant <"short"> : !selir.str
  %f = selir.constant <"full"> : !selir.str
  // CHECK: [[LT:%.*]] = selir.lt
  // CHECK-NEXT: [[PIN:%.*]] = selir.pin "small" [[LT]]
  %small = selir.lt %b, %k : (!selir.int, !selir.int) -> !selir.bool
  // CHECK: selir.select [[PIN]],
  %path = selir.select %small, %s, %f : (!selir.bool, !selir.str, !selir.str) -> !selir.str
  selir.require "small only" {
    // CHECK: selir.not [[PIN]]
    %big = selir.not %small : (!selir.bool) -> !selir.bool
    // CHECK: selir.lt %b,
    %fits = selir.lt %b, %k : (!selir.int, !selir.int) -> !selir.bool
    %ok = selir.or %big, %fits : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %ok : !selir.bool
  }
  selir.points ["path"] %path : !selir.str
}

// Without control dependence the select does not depend on its condition: no pin, although the point moves.
// CHECK-LABEL: "control"
// CHECK: selir.pin
// DATA-LABEL: "control"
// DATA-NOT: selir.pin
selir.program "control" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %a = selir.constant <1> : !selir.int
  %c = selir.constant <2> : !selir.int
  %r = selir.select %g, %a, %c : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  selir.points ["r"] %r : !selir.int
}
