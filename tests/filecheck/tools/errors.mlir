// RUN: not detent-opt %s 2>&1 | filecheck %s --check-prefix=VERIFY
// RUN: detent-opt %s --verify-diagnostics | filecheck %s --check-prefix=DIAGNOSTIC
// RUN: not detent-opt %s -p selir-nonsense 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not detent-opt %s -p 'dce{' 2>&1 | filecheck %s --check-prefix=SPEC
// RUN: not detent-opt %s -p 'dce{depth=1}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not detent-opt %s --pass-pipeline 'builtin.module(func.func(dce))' 2>&1 | filecheck %s --check-prefix=NESTED
// RUN: not detent-opt %s.missing 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not detent-opt %s --debug 2>&1 | filecheck %s --check-prefix=DEBUG

"test.termop"() : () -> ()
"test.op"() : () -> ()

// VERIFY-NOT: Traceback
// VERIFY: {{^}}error: {{.*}}errors.mlir:10:1: test.termop: 'test.termop' must be the last operation in its parent block
// DIAGNOSTIC: 'test.termop' must be the last operation in its parent block
// PASS: {{^}}error: unknown pass 'selir-nonsense'; {{.*}}known: selir-partial-eval, {{.*}}, dce{{$}}
// SPEC: {{^}}error: pass-pipeline:1:5: Expected argument name here
// OPTION: {{^}}error: Provided arguments ["depth"] not found
// NESTED: error: argument --pass-pipeline: func.func(...): passes run on builtin.module only and do not nest
// MISSING: {{^}}error: {{.*}}errors.mlir.missing: No such file or directory
// DEBUG: Traceback
// DEBUG: {{^}}error: {{.*}}test.termop:
