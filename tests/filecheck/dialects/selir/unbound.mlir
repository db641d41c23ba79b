// RUN: detent-opt %s | detent-opt | filecheck %s
// RUN: detent-opt %s --print-op-generic | detent-opt | filecheck %s

// CHECK-LABEL: selir.func "helper" ["a"] {
selir.func "helper" ["a"] {
// CHECK-NEXT: ^bb0(%a: !selir.any):
^bb0(%a: !selir.any):
  // CHECK-NEXT: %x = selir.field %a "x" : !selir.any -> !selir.any
  %x = selir.field %a "x" : !selir.any -> !selir.any
  // CHECK-NEXT: %pair = selir.tuple %x, %a : (!selir.any, !selir.any) -> !selir.any
  %pair = selir.tuple %x, %a : (!selir.any, !selir.any) -> !selir.any
  // CHECK-NEXT: %one, %two = selir.unpack %pair : (!selir.any) -> (!selir.any, !selir.any)
  %one, %two = selir.unpack %pair : (!selir.any) -> (!selir.any, !selir.any)
  // CHECK-NEXT: %at = selir.item %pair at %one : (!selir.any, !selir.any) -> !selir.any
  %at = selir.item %pair at %one : (!selir.any, !selir.any) -> !selir.any
  // CHECK-NEXT: %map = selir.dict %one, %two : (!selir.any, !selir.any) -> !selir.any
  %map = selir.dict %one, %two : (!selir.any, !selir.any) -> !selir.any
  // CHECK: %least = selir.builtin "min" ["key"] %map, %key : (!selir.any, !selir.any) -> !selir.any
  %key = selir.lambda {
  ^bb1(%v: !selir.any):
    selir.yield %v : !selir.any
  } : !selir.any
  %least = selir.builtin "min" ["key"] %map, %key : (!selir.any, !selir.any) -> !selir.any
  // CHECK: %all = selir.comprehension "list" {
  // CHECK-NEXT: selir.for_each %pair {
  // CHECK-NEXT: ^bb0(%e: !selir.any):
  // CHECK-NEXT: selir.filter %e : !selir.any
  // CHECK-NEXT: selir.emit %e : !selir.any
  // CHECK-NEXT: } : !selir.any
  // CHECK-NEXT: } : !selir.any
  %all = selir.comprehension "list" {
    selir.for_each %pair {
    ^bb2(%e: !selir.any):
      selir.filter %e : !selir.any
      selir.emit %e : !selir.any
    } : !selir.any
  } : !selir.any
  // CHECK-NEXT: selir.undef "later" : !selir.any
  %later = selir.undef "later" : !selir.any
  // CHECK-NEXT: selir.return %all : !selir.any
  selir.return %all : !selir.any
}

// CHECK-LABEL: selir.program "unbound" family "demo" {
selir.program "unbound" family "demo" {
  // CHECK-NEXT: %model = selir.facts "model" <{"heads": "int"}> : !selir.any
  %model = selir.facts "model" <{"heads": "int"}> : !selir.any
  // CHECK-NEXT: %b = selir.input "b" runtime : !selir.int
  %b = selir.input "b" runtime : !selir.int
  // CHECK-NEXT: %call = selir.record ["b"] %b : !selir.int -> !selir.any
  %call = selir.record ["b"] %b : !selir.int -> !selir.any
  // CHECK-NEXT: %f = selir.func_ref "helper" : !selir.any
  %f = selir.func_ref "helper" : !selir.any
  // CHECK-NEXT: %out = selir.call "helper" [] %call : (!selir.any) -> !selir.any
  %out = selir.call "helper" [] %call : (!selir.any) -> !selir.any
  // CHECK-NEXT: selir.return %out : !selir.any
  selir.return %out : !selir.any
}
