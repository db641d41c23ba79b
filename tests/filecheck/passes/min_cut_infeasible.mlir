// RUN: not detent-opt %s -p selir-min-cut 2>&1 | filecheck %s

// CHECK: error:
// CHECK-SAME: the unpinnable input 'tokens' reaches selection point 'grid'
selir.program "infeasible" family "demo" {
  %tokens = selir.input "tokens" unpinnable : !selir.int
  selir.points ["grid"] %tokens : !selir.int
}
