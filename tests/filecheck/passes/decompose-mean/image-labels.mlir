// RUN: opt-tool %s --pass-pipeline=decompose-mean,cse,dce --mlir-print-debuginfo=false | filecheck %s

// Labels of images are counted like labels of rows.
// CHECK-LABEL: func.func @forward_and_backward
func.func @forward_and_backward(%scores: tensor<2x10x4x4xf32>, %labels: tensor<2x4x4xi64>, %grad: tensor<f32>) -> (tensor<f32>, tensor<2x10x4x4xf32>) {
  // CHECK-NEXT: %valid = aten.ne.Scalar %labels {other = -100 : i64} : (tensor<2x4x4xi64>) -> tensor<2x4x4xi1>
  // CHECK-NEXT: %labels.counted = aten.sum %valid : (tensor<2x4x4xi1>) -> tensor<i64>
  // CHECK-NEXT: %count = aten._to_copy %labels.counted {dtype = f32} : (tensor<i64>) -> tensor<f32>
  // CHECK-NEXT: %loss.sum, %weight = aten.nll_loss2d_forward %scores, %labels {reduction = 2 : i64
  // CHECK-NEXT: %loss = aten.div.Tensor %loss.sum, %count
  %loss, %weight = aten.nll_loss2d_forward %scores, %labels {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<2x10x4x4xf32>, tensor<2x4x4xi64>) -> (tensor<f32>, tensor<f32>)
  // CHECK-NEXT: %grad.mean = aten.div.Tensor %grad, %count {train.backward}
  // CHECK-NEXT: %d = aten.nll_loss2d_backward %grad.mean, %scores, %labels, %count {reduction = 2 : i64
  %d = aten.nll_loss2d_backward %grad, %scores, %labels, %weight {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"], train.backward}
    : (tensor<f32>, tensor<2x10x4x4xf32>, tensor<2x4x4xi64>, tensor<f32>) -> tensor<2x10x4x4xf32>
  // CHECK-NEXT: func.return %loss, %d
  func.return %loss, %d : tensor<f32>, tensor<2x10x4x4xf32>
}
