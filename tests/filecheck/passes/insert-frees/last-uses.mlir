// RUN: opt-tool %s --pass-pipeline=insert-frees --mlir-print-debuginfo=false | filecheck %s

// CHECK-LABEL: func.func @after_the_last_of_several_uses
func.func @after_the_last_of_several_uses(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %a = aten.relu %x
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %b = aten.exp %a
  %b = aten.exp %a : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %c = aten.mul.Tensor %a, %b
  // CHECK-NEXT: spmd.free %a, %b : tensor<4xf32>, tensor<4xf32>
  %c = aten.mul.Tensor %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: func.return %c
  func.return %c : tensor<4xf32>
}

// A result that nobody uses is freed where it is made.
// CHECK-LABEL: func.func @unused_result
func.func @unused_result(%x: tensor<4x6xf32>) -> tensor<4x1xf32> {
  // CHECK-NEXT: %values, %places = aten.max.dim
  // CHECK-NEXT: spmd.free %places : tensor<4x1xi64>
  // CHECK-NEXT: func.return %values
  %values, %places = aten.max.dim %x {dim = 1 : i64, keepdim = true} : (tensor<4x6xf32>) -> (tensor<4x1xf32>, tensor<4x1xi64>)
  func.return %values : tensor<4x1xf32>
}

// Frees of an earlier run are replaced.
// CHECK-LABEL: func.func @again
func.func @again(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %a = aten.relu %x
  // CHECK-NEXT: %b = aten.exp %a
  // CHECK-NEXT: spmd.free %a
  // CHECK-NEXT: func.return %b
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  %b = aten.exp %a : (tensor<4xf32>) -> tensor<4xf32>
  spmd.free %a : tensor<4xf32>
  func.return %b : tensor<4xf32>
}
