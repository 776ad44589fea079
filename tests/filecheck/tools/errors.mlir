// RUN: not opt-tool %s 2>&1 | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='dce,canonicalise' 2>&1 | filecheck %s --check-prefix=PIPELINE
// RUN: not opt-tool %s --pass-pipeline='dce{limit=3}' 2>&1 | filecheck %s --check-prefix=OPTION

// NO-ROUND-TRIP: it does not parse
// CHECK:      errors.mlir:19:8: error: operation arith.adi is not registered
// CHECK-NEXT:   %y = arith.adi %x, %x : i32
// CHECK-NEXT:        ^^^^^^^^^
// CHECK-NEXT: hint: did you mean 'arith.andi'?

// PIPELINE:      <pass-pipeline>:1:5: error: unknown pass 'canonicalise'
// PIPELINE-NEXT:   dce,canonicalise
// PIPELINE-NEXT:       ^^^^^^^^^^^^
// PIPELINE-NEXT: hint: did you mean 'canonicalize'?

// OPTION: <pass-pipeline>:1:5: error: pass 'dce' has no option 'limit'
// OPTION: hint: it takes no options
func.func @f(%x: i32) -> i32 {
  %y = arith.adi %x, %x : i32
  func.return %y : i32
}
