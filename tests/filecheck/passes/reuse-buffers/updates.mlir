// RUN: opt-tool %s --pass-pipeline=reuse-buffers --mlir-print-debuginfo=false | filecheck %s

// An update is written over the parameter whose new value the function returns; without that, the caller still needs
// the old one.

// CHECK-LABEL: func.func @returned
func.func @returned(%w: tensor<4xf32> {train.param = "w"}, %g: tensor<4xf32>, %lr: tensor<f32>)
    -> (tensor<4xf32> {train.updates = 0 : i64}) {
  // CHECK: train.sgd %w, %g, %lr {absent = ["momentum_buffer", "step"], spmd.reuses = array<i64: 0>}
  %n = train.sgd %w, %g, %lr {absent = ["momentum_buffer", "step"]} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  func.return %n : tensor<4xf32>
}

// CHECK-LABEL: func.func @read_later
func.func @read_later(%w: tensor<4xf32> {train.param = "w"}, %g: tensor<4xf32>, %lr: tensor<f32>)
    -> (tensor<4xf32> {train.updates = 0 : i64}, tensor<4xf32>) {
  // CHECK: train.sgd %w, %g, %lr {absent = ["momentum_buffer", "step"], spmd.reuses = array<i64: -1>}
  %n = train.sgd %w, %g, %lr {absent = ["momentum_buffer", "step"]} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %old = aten.relu %w : (tensor<4xf32>) -> tensor<4xf32>
  func.return %n, %old : tensor<4xf32>, tensor<4xf32>
}
