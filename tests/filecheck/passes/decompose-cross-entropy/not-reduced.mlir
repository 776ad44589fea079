// RUN: opt-tool %s --pass-pipeline=decompose-cross-entropy --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A loss per row has a gradient per row.
// CHECK-LABEL: func.func @rows
func.func @rows(
    %scores: tensor<8x10xf64>, %labels: tensor<8xi64> {train.batch = "labels", train.range = [0, 10]},
    %classes: tensor<10xf64>, %g: tensor<8xf64>) -> (tensor<8xf64>, tensor<8x10xf64>) {
  // CHECK-NOT: aten._log_softmax
  // CHECK: %loss = aten.add.Tensor %loss.kept, %loss.picked
  // CHECK-NOT: aten.expand
  // CHECK: %grad.weighted = aten.mul.Tensor %grad.weights, %g
  // CHECK-NEXT: %grad.rows = aten.masked_fill.Scalar %grad.weighted, %grad.ignored
  // CHECK-NEXT: %grad = aten.cross_entropy_backward %grad.rows, %scores, %log.logsumexp, %labels
  %log = aten._log_softmax %scores {dim = -1 : i64, half_to_float = false} : (tensor<8x10xf64>) -> tensor<8x10xf64>
  %loss, %count = aten.nll_loss_forward %log, %labels, %classes {reduction = 0 : i64, ignore_index = 3 : i64}
    : (tensor<8x10xf64>, tensor<8xi64>, tensor<10xf64>) -> (tensor<8xf64>, tensor<f64>)
  %log.grad = aten.nll_loss_backward %g, %log, %labels, %classes, %count {reduction = 0 : i64, ignore_index = 3 : i64}
    : (tensor<8xf64>, tensor<8x10xf64>, tensor<8xi64>, tensor<10xf64>, tensor<f64>) -> tensor<8x10xf64>
  %grad = aten._log_softmax_backward_data %log.grad, %log {dim = -1 : i64, input_dtype = f64}
    : (tensor<8x10xf64>, tensor<8x10xf64>) -> tensor<8x10xf64>
  func.return %loss, %grad : tensor<8xf64>, tensor<8x10xf64>
}
