// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2}' | filecheck %s

// A weight that two stages use lives on the first: it is sent, and its gradient is sent back. The updates of both stages
// have separate learning rates, and both stages return the loss.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK: func.func @step(%w: tensor<8xf32> {train.param = "fc1.weight", train.tied = ["fc2.weight"], pipe.stage = 0 : i64}
// CHECK-SAME: %lr: tensor<f64> {train.learning_rate, pipe.stage = 0 : i64}
// CHECK-SAME: %lr.at1: tensor<f64> {train.learning_rate, pipe.stage = 1 : i64}
// CHECK-SAME: -> (tensor<8xf32> {train.loss}, tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.loss})
func.func @step(%w: tensor<8xf32> {train.param = "fc1.weight", train.tied = ["fc2.weight"]}, %x: tensor<8xf32> {train.batch = "0"},
    %lr: tensor<f64> {train.learning_rate}) -> (tensor<8xf32> {train.loss}, tensor<8xf32> {train.updates = 0 : i64}) {
  // CHECK: %a = aten.mul.Tensor %x, %w {pipe.stage = 0 : i64}
  %a = aten.mul.Tensor %x, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc1")
  // CHECK-NEXT: %a.at1 = pipe.transfer "a.at1" %a to @stage1
  // CHECK-NEXT: %w.at1 = pipe.transfer "w.at1" %w to @stage1
  // CHECK-NEXT: %b = aten.mul.Tensor %a.at1, %w.at1 {pipe.stage = 1 : i64}
  %b = aten.mul.Tensor %a, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  // CHECK-NEXT: %b.at0 = pipe.transfer "b.at0" %b to @stage0
  // CHECK-NEXT: %g = aten.exp %w.at1 {train.backward, pipe.stage = 1 : i64}
  %g = aten.exp %w {train.backward} : (tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  // CHECK-NEXT: %g.at0 = pipe.transfer "g.at0" %g to @stage0 {train.backward}
  // CHECK-NEXT: %w.new = train.sgd %w, %g.at0, %lr {absent = ["momentum_buffer", "step"], pipe.stage = 0 : i64}
  %w.new = train.sgd %w, %g, %lr {absent = ["momentum_buffer", "step"]} : (tensor<8xf32>, tensor<8xf32>, tensor<f64>) -> tensor<8xf32> loc("fc1")
  // CHECK-NEXT: func.return %b.at0, %w.new, %b
  func.return %b, %w.new : tensor<8xf32>, tensor<8xf32>
}
