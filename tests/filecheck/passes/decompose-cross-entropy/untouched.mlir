// RUN: opt-tool %s --pass-pipeline=decompose-cross-entropy --mlir-print-debuginfo=false | filecheck %s

// The logarithms of probabilities are a result too.
// CHECK-LABEL: func.func @used_otherwise
func.func @used_otherwise(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>) -> (tensor<f32>, tensor<8x10xf32>) {
  // CHECK-NEXT: aten._log_softmax
  // CHECK-NEXT: aten.nll_loss_forward %log
  // CHECK-NEXT: func.return
  %log = aten._log_softmax %scores {dim = 1 : i64, half_to_float = false} : (tensor<8x10xf32>) -> tensor<8x10xf32>
  %loss, %count = aten.nll_loss_forward %log, %labels {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
  func.return %loss, %log : tensor<f32>, tensor<8x10xf32>
}

// A mean is left to decompose-mean.
// CHECK-LABEL: func.func @mean
func.func @mean(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>) -> tensor<f32> {
  // CHECK-NEXT: aten._log_softmax
  %log = aten._log_softmax %scores {dim = 1 : i64, half_to_float = false} : (tensor<8x10xf32>) -> tensor<8x10xf32>
  %loss, %count = aten.nll_loss_forward %log, %labels {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
  func.return %loss : tensor<f32>
}

// In half precision torch sums in single; the op stays.
// CHECK-LABEL: func.func @half
func.func @half(%scores: tensor<8x10xbf16>, %labels: tensor<8xi64>) -> tensor<bf16> {
  // CHECK-NEXT: aten._log_softmax
  %log = aten._log_softmax %scores {dim = 1 : i64, half_to_float = false} : (tensor<8x10xbf16>) -> tensor<8x10xbf16>
  %loss, %count = aten.nll_loss_forward %log, %labels {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<8x10xbf16>, tensor<8xi64>) -> (tensor<bf16>, tensor<bf16>)
  func.return %loss : tensor<bf16>
}
