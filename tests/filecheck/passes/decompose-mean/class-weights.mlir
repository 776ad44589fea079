// RUN: opt-tool %s --pass-pipeline=decompose-mean --mlir-print-debuginfo=false | filecheck %s

// With class weights the divisor is the sum of the labels' weights, which the op itself gives.
// CHECK-LABEL: func.func @weighted
func.func @weighted(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>, %classes: tensor<10xf32>) -> tensor<f32> {
  // CHECK-NEXT: %loss.sum, %weight = aten.nll_loss_forward %scores, %labels, %classes {reduction = 2 : i64, ignore_index = -100 : i64}
  // CHECK-NEXT: %loss = aten.div.Tensor %loss.sum, %weight
  // CHECK-NEXT: func.return %loss
  %loss, %weight = aten.nll_loss_forward %scores, %labels, %classes {reduction = 1 : i64, ignore_index = -100 : i64}
    : (tensor<8x10xf32>, tensor<8xi64>, tensor<10xf32>) -> (tensor<f32>, tensor<f32>)
  func.return %loss : tensor<f32>
}
