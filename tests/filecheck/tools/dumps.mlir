// RUN: opt-tool %s --pass-pipeline=cse,dce --print-ir-before=cse --print-ir-after-change 2>&1 >/dev/null | filecheck %s
// RUN: opt-tool %s --pass-pipeline=cse,dce --mlir-timing 2>&1 >/dev/null | filecheck %s --check-prefix=TIME

// The result goes to standard output, dumps go to standard error.
// CHECK:       // -----// IR Dump Before cse //----- //
// CHECK:         %again = arith.addi %x, %x : i32
// CHECK:       // -----// IR Dump After cse //----- //
// CHECK-NOT:     %again
// CHECK-NOT:   IR Dump

// TIME:      Execution time report
// TIME:      Parser
// TIME-NEXT: cse
// TIME-NEXT: dce
// TIME-NEXT: Output
// TIME-NEXT: Rest
// TIME-NEXT: Total
func.func @f(%x: i32) -> (i32, i32) {
  %y = arith.addi %x, %x : i32
  %again = arith.addi %x, %x : i32
  func.return %y, %again : i32, i32
}
