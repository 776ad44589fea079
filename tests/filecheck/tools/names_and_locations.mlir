// RUN: opt-tool %s | filecheck %s
// RUN: opt-tool %s | opt-tool | filecheck %s
// RUN: opt-tool %s --mlir-print-op-generic | opt-tool | filecheck %s

// A number at the end of a name and the place in the model are part of what the user wrote.
// CHECK:      func.func @f(%x_2: i32 loc("x"), %x: i32 loc(unknown)) -> i32 {
// CHECK-NEXT:   %h_1 = arith.addi %x_2, %x : i32 loc("layers.1.fc"("model.py":12:8))
// CHECK-NEXT:   %0 = arith.addi %h_1, %x : i32 loc(unknown)
// CHECK-NEXT:   func.return %0 : i32
func.func @f(%x_2: i32 loc("x"), %x: i32) -> i32 {
  %h_1 = arith.addi %x_2, %x : i32 loc("layers.1.fc"("model.py":12:8))
  %7 = arith.addi %h_1, %x : i32
  func.return %7 : i32
}
