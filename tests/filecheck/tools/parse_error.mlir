// RUN: not detent-opt %s 2>&1 | filecheck %s

// CHECK: {{^}}error: {{.*}}parse_error.mlir:4:12: operand expected
"test.op"( : () -> i32
