// RUN: opt-tool %s --pass-pipeline=cse --mlir-print-debuginfo=false | filecheck %s

// CHECK-LABEL: func.func @equal_ops_are_one
func.func @equal_ops_are_one(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT: %y = aten.exp %x
  // CHECK-NEXT: func.return %y, %y
  %y = aten.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  %z = aten.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @other_arguments_are_other_ops
func.func @other_arguments_are_other_ops(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-COUNT-2: aten.add.Scalar
  %y = aten.add.Scalar %x {other = 1.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  %z = aten.add.Scalar %x {other = 2.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}
