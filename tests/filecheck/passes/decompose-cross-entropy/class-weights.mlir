// RUN: opt-tool %s --pass-pipeline=decompose-mean,decompose-cross-entropy --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// The weight of each label is looked up, and the mean divides by their sum.
// CHECK-LABEL: func.func @weighted
func.func @weighted(
    %scores: tensor<8x10xf32>, %labels: tensor<8xi64> {train.batch = "labels", train.range = [-100, 10]},
    %classes: tensor<10xf32>) -> tensor<f32> {
  // CHECK: %log.logsumexp = aten.add.Tensor
  // CHECK: %count = aten.sum %labels.counted
  // CHECK: %loss.sum.ignored = aten.eq.Scalar %labels {other = -100 : i64}
  // CHECK-NEXT: %loss.sum.legal = aten.masked_fill.Scalar %labels, %loss.sum.ignored {value = 0 : i64}
  // CHECK-NEXT: %loss.sum.weights = aten.index_select %classes, %loss.sum.legal {dim = 0 : i64}
  // CHECK-NEXT: %loss.sum.weighted = aten.mul.Tensor %loss.sum.weights, %log.logsumexp
  // CHECK-NEXT: %loss.sum.kept = aten.masked_fill.Scalar %loss.sum.weighted, %loss.sum.ignored
  // CHECK-NEXT: %loss.sum.picked, %weight = aten.nll_loss_forward %scores, %labels, %classes {reduction = 0 : i64
  // CHECK: aten.div.Tensor %loss.sum, %count
  %log = aten._log_softmax %scores {dim = 1 : i64, half_to_float = false} : (tensor<8x10xf32>) -> tensor<8x10xf32>
  %loss, %weight = aten.nll_loss_forward %log, %labels, %classes {reduction = 1 : i64, ignore_index = -100 : i64}
    : (tensor<8x10xf32>, tensor<8xi64>, tensor<10xf32>) -> (tensor<f32>, tensor<f32>)
  func.return %loss : tensor<f32>
}
