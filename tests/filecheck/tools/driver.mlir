// RUN: detent-opt %s | filecheck %s
// RUN: detent-opt %s -p 'canonicalize,cse,dce' | filecheck %s --check-prefix=CLEAN
// RUN: detent-opt %s --pass-pipeline 'builtin.module(canonicalize, cse, dce)' | filecheck %s --check-prefix=CLEAN
// RUN: detent-opt %s --pass-pipeline 'canonicalize,cse,dce' | filecheck %s --check-prefix=CLEAN
// RUN: detent-opt %s --print-op-generic | detent-opt -p dce | filecheck %s --check-prefix=CLEAN
// RUN: detent-opt --version | filecheck %s --check-prefix=VERSION

%used = "test.op"() : () -> i32
%unused = "test.pureop"() : () -> i32
"test.op"(%used) : (i32) -> ()

// CHECK:      builtin.module {
// CHECK-NEXT:   %[[USED:.*]] = "test.op"() : () -> i32
// CHECK-NEXT:   %[[UNUSED:.*]] = "test.pureop"() : () -> i32
// CHECK-NEXT:   "test.op"(%[[USED]]) : (i32) -> ()

// CLEAN:      builtin.module {
// CLEAN-NEXT:   %[[USED:.*]] = "test.op"() : () -> i32
// CLEAN-NEXT:   "test.op"(%[[USED]]) : (i32) -> ()

// VERSION: detent-opt {{[0-9.]+}} (xDSL {{[0-9.]+}})
