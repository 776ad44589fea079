// RUN: opt-tool %s --pass-pipeline=decompose-mean --mlir-print-debuginfo=false | filecheck %s

// With class weights the divisor is the sum of the labels' weights, computed from the labels alone.
// CHECK-LABEL: func.func @weighted
func.func @weighted(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>, %classes: tensor<10xf32>) -> tensor<f32> {
  // CHECK-NEXT: %ignored = aten.eq.Scalar %labels {other = -100 : i64}
  // CHECK-NEXT: %legal = aten.masked_fill.Scalar %labels, %ignored {value = 0 : i64}
  // CHECK-NEXT: %weights = aten.index_select %classes, %legal {dim = 0 : i64}
  // CHECK-NEXT: %labels.counted = aten.masked_fill.Scalar %weights, %ignored
  // CHECK-NEXT: %count = aten.sum %labels.counted
  // CHECK-NEXT: %loss.sum, %weight = aten.nll_loss_forward %scores, %labels, %classes {reduction = 2 : i64, ignore_index = -100 : i64}
  // CHECK-NEXT: %loss = aten.div.Tensor %loss.sum, %count
  // CHECK-NEXT: func.return %loss
  %loss, %weight = aten.nll_loss_forward %scores, %labels, %classes {reduction = 1 : i64, ignore_index = -100 : i64}
    : (tensor<8x10xf32>, tensor<8xi64>, tensor<10xf32>) -> (tensor<f32>, tensor<f32>)
  func.return %loss : tensor<f32>
}

// The gradient of a sum takes a count that it does not read; it does not wait for the count of the loss.
// CHECK-LABEL: func.func @summed
func.func @summed(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>, %g: tensor<f32>) -> tensor<8x10xf32> {
  // CHECK: %count = aten._to_copy
  // CHECK: aten.nll_loss_backward %g, %scores, %labels, %count
  %loss, %weight = aten.nll_loss_forward %scores, %labels {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
  %grad = aten.nll_loss_backward %g, %scores, %labels, %weight {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<f32>, tensor<8x10xf32>, tensor<8xi64>, tensor<f32>) -> tensor<8x10xf32>
  func.return %grad : tensor<8x10xf32>
}
