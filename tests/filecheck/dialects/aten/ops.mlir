// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --mlir-print-op-generic | opt-tool --mlir-print-debuginfo=false | filecheck %s

// CHECK-LABEL: func.func @arguments_are_attributes
func.func @arguments_are_attributes(%x: tensor<4x6xf32>) -> tensor<4x1xi64> {
  // CHECK: %values, %places = aten.max.dim %x {dim = -1 : i64, keepdim = true}
  %values, %places = aten.max.dim %x {dim = -1 : i64, keepdim = true} : (tensor<4x6xf32>) -> (tensor<4x1xf32>, tensor<4x1xi64>)
  func.return %places : tensor<4x1xi64>
}

// CHECK-LABEL: func.func @tensor_arguments_that_are_none_are_listed
func.func @tensor_arguments_that_are_none_are_listed(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  // CHECK: %y, %mean, %rstd = aten.native_layer_norm %x {{.*}}absent = ["weight", "bias"]
  %y, %mean, %rstd = aten.native_layer_norm %x {normalized_shape = [6], eps = 1.0e-05 : f64, absent = ["weight", "bias"]} : (tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x1xf32>, tensor<4x1xf32>)
  func.return %y : tensor<4x6xf32>
}

// CHECK-LABEL: func.func @lists_of_tensors_are_operands
func.func @lists_of_tensors_are_operands(%x: tensor<4x6xf32>, %y: tensor<4x1xf32>) -> tensor<4x13xf32> {
  // CHECK: %z = aten.cat %x, %y, %x {dim = 1 : i64} : (tensor<4x6xf32>, tensor<4x1xf32>, tensor<4x6xf32>)
  %z = aten.cat %x, %y, %x {dim = 1 : i64} : (tensor<4x6xf32>, tensor<4x1xf32>, tensor<4x6xf32>) -> tensor<4x13xf32>
  func.return %z : tensor<4x13xf32>
}

// CHECK-LABEL: func.func @without_operands
func.func @without_operands() -> tensor<2x3xbf16> {
  // CHECK: %z = aten.zeros {{.*}}dtype = bf16} : () -> tensor<2x3xbf16>
  %z = aten.zeros {size = [2, 3], dtype = bf16} : () -> tensor<2x3xbf16>
  func.return %z : tensor<2x3xbf16>
}

// CHECK-LABEL: func.func @bias_broadcasts
func.func @bias_broadcasts(%b: tensor<8xf32>, %x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
  // CHECK: %y = aten.addmm %b, %x, %w : (tensor<8xf32>, tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %y = aten.addmm %b, %x, %w : (tensor<8xf32>, tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
