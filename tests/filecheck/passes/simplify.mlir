// RUN: detent-opt %s -p 'selir-simplify,selir-dce' | filecheck %s
// RUN: detent-opt %s -p 'selir-simplify{ranges=false value-sets=false},selir-dce' | filecheck %s --check-prefix=BLIND
// RUN: detent-opt %s -p 'selir-simplify{equal-arms=false},selir-dce' | filecheck %s --check-prefix=ARMS

// CHECK-LABEL: "ranges"
// BLIND-LABEL: "ranges"
selir.program "ranges" family "demo" {
  %b = selir.input "b" unpinnable : !selir.int
  %one = selir.constant <1> : !selir.int
  %limit = selir.constant <8192> : !selir.int
  %far = selir.constant <10000> : !selir.int
  // The assume that gives the range is itself never folded by it.
  // CHECK: selir.assume "bounds" {
  // CHECK: selir.and
  selir.assume "bounds" {
    %lo = selir.le %one, %b : (!selir.int, !selir.int) -> !selir.bool
    %hi = selir.le %b, %limit : (!selir.int, !selir.int) -> !selir.bool
    %in = selir.and %lo, %hi : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %in : !selir.bool
  }
  %over = selir.gt %b, %far : (!selir.int, !selir.int) -> !selir.bool
  %m = selir.min %b, %far : (!selir.int, !selir.int) -> !selir.int
  // A point that equals an input reads a copy of it, which may be pinned.
  // CHECK: [[M:%.*]] = selir.copy %b
  // CHECK: selir.points ["over", "m"] %{{.*}}, [[M]]
  // BLIND: [[OVER:%.*]] = selir.gt
  // BLIND: [[MIN:%.*]] = selir.min
  // BLIND: selir.points ["over", "m"] [[OVER]], [[MIN]]
  selir.points ["over", "m"] %over, %m : !selir.bool, !selir.int
}

// CHECK-LABEL: "algebra"
// ARMS-LABEL: "algebra"
selir.program "algebra" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %b = selir.input "b" runtime : !selir.int
  %zero = selir.constant <0> : !selir.int
  %one = selir.constant <1> : !selir.int
  %true = selir.constant <true> : !selir.bool
  %false = selir.constant <false> : !selir.bool
  %same = selir.select %g, %b, %b : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  %again = selir.select %g, %true, %false : (!selir.bool, !selir.bool, !selir.bool) -> !selir.bool
  %not = selir.not %g : (!selir.bool) -> !selir.bool
  %twice = selir.not %not : (!selir.bool) -> !selir.bool
  %never = selir.and %g, %not : (!selir.bool, !selir.bool) -> !selir.bool
  %plus = selir.add %b, %zero : (!selir.int, !selir.int) -> !selir.int
  %times = selir.mul %plus, %one : (!selir.int, !selir.int) -> !selir.int
  // CHECK: [[B:%.*]] = selir.copy %b
  // CHECK: [[G:%.*]] = selir.copy %g
  // CHECK: selir.points ["same", "again", "twice", "never", "times"] [[B]], [[G]], [[G]], %false, [[B]]
  // ARMS: [[SAME:%.*]] = selir.select %g, %b, %b
  // ARMS: [[G:%.*]] = selir.copy %g
  // ARMS: [[B:%.*]] = selir.copy %b
  // ARMS: selir.points ["same", "again", "twice", "never", "times"] [[SAME]], [[G]], [[G]], %false, [[B]]
  selir.points ["same", "again", "twice", "never", "times"] %same, %again, %twice, %never, %times : !selir.int, !selir.bool, !selir.bool, !selir.bool, !selir.int
}

// Value sets see that two values move together when they hang on one small value, and that every row a key
// can reach agrees in a column.
// CHECK-LABEL: "value_sets"
selir.program "value_sets" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %a = selir.constant <64> : !selir.int
  %b = selir.constant <128> : !selir.int
  %tile = selir.select %g, %a, %b : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  %other = selir.select %g, %b, %a : (!selir.bool, !selir.int, !selir.int) -> !selir.int
  // CHECK-DAG: [[SUM:%.*]] = selir.constant <192>
  %sum = selir.add %tile, %other : (!selir.int, !selir.int) -> !selir.int
  // CHECK-DAG: [[COL:%.*]] = selir.constant <"x">
  %col = selir.lookup %tile in <[[64, "x"], [128, "x"], [256, "y"]]> : (!selir.int) -> !selir.str
  // CHECK: selir.points ["sum", "col"] [[SUM]], [[COL]]
  selir.points ["sum", "col"] %sum, %col : !selir.int, !selir.str
}

// What a condition names is opaque to it: %n is "not %g", but both may be pinned apart from each other.
// CHECK-LABEL: "opaque"
selir.program "opaque" family "demo" {
  %g = selir.input "g" runtime : !selir.bool
  %n = selir.not %g : (!selir.bool) -> !selir.bool
  // CHECK: selir.require "apart" {
  // CHECK-NEXT: [[E:%.*]] = selir.or %n, %g
  // CHECK-NEXT: selir.yield [[E]]
  selir.require "apart" {
    %e = selir.or %n, %g : (!selir.bool, !selir.bool) -> !selir.bool
    selir.yield %e : !selir.bool
  }
  selir.points ["n"] %n : !selir.bool
}
