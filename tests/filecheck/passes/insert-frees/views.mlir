// RUN: opt-tool %s --pass-pipeline=insert-frees --mlir-print-debuginfo=false | filecheck %s

// A view keeps its memory alive, so the viewed value can be freed.
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<4x6xf32>) -> tensor<24xf32> {
  // CHECK-NEXT: %a = aten.relu %x
  %a = aten.relu %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // CHECK-NEXT: %b = aten.view %a
  // CHECK-NEXT: spmd.free %a : tensor<4x6xf32>
  %b = aten.view %a {size = [24]} : (tensor<4x6xf32>) -> tensor<24xf32>
  // CHECK-NEXT: %c = aten.exp %b
  // CHECK-NEXT: spmd.free %b : tensor<24xf32>
  %c = aten.exp %b : (tensor<24xf32>) -> tensor<24xf32>
  func.return %c : tensor<24xf32>
}
