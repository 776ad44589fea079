// RUN: opt-tool %s --pass-pipeline=decompose-mean --print-ir-after-change 2>&1 | filecheck %s

// Sums need no change: they add up over parts.
// CHECK-NOT: IR Dump
// CHECK: aten.nll_loss_forward %scores, %labels {reduction = 2 : i64
// CHECK: aten.nll_loss_forward %scores, %labels {reduction = 0 : i64
func.func @sums(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>) -> (tensor<f32>, tensor<8xf32>) {
  %sum, %a = aten.nll_loss_forward %scores, %labels {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]} : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
  %each, %b = aten.nll_loss_forward %scores, %labels {reduction = 0 : i64, ignore_index = -100 : i64, absent = ["weight"]} : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<8xf32>, tensor<f32>)
  func.return %sum, %each : tensor<f32>, tensor<8xf32>
}
