// RUN: opt-tool %s --pass-pipeline=reuse-buffers --mlir-print-debuginfo=false | filecheck %s

// A sum is written over an operand after its last use; an argument belongs to the caller, and a view keeps its
// memory alive.

// CHECK-LABEL: func.func @over_its_first_operand
func.func @over_its_first_operand(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %a = aten.relu %x :
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: 0>}
  %b = aten.add.Tensor %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %c = aten.mul.Tensor %b, %x :
  %c = aten.mul.Tensor %b, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %c : tensor<4xf32>
}

// CHECK-LABEL: func.func @read_again
func.func @read_again(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: -1>}
  %b = aten.add.Tensor %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %c = aten.add.Tensor %b, %a {spmd.reuses = array<i64: 0>}
  %c = aten.add.Tensor %b, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %c : tensor<4xf32>
}

// CHECK-LABEL: func.func @argument
func.func @argument(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: aten.add.Tensor %x, %x {spmd.reuses = array<i64: -1>}
  %a = aten.add.Tensor %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %a : tensor<4xf32>
}

// CHECK-LABEL: func.func @a_view_is_read
func.func @a_view_is_read(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<2x2xf32>) {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  %v = aten.view %a {size = [2, 2]} : (tensor<4xf32>) -> tensor<2x2xf32>
  // CHECK: aten.add.Tensor %a, %x {spmd.reuses = array<i64: -1>}
  %b = aten.add.Tensor %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %b, %v : tensor<4xf32>, tensor<2x2xf32>
}

// Existing decisions are made again.
// CHECK-LABEL: func.func @again
func.func @again(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: aten.add.Tensor %a, %x {spmd.reuses = array<i64: 0>}
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: -1>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}
