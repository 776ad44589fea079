// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2}' | filecheck %s

// A value computed from batch items alone is computed on every stage that uses it, from the stage's own batch item.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK: %x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}
// CHECK-SAME: %x.at1: tensor<8xf32> {train.batch = "0", pipe.stage = 1 : i64}
func.func @step(%v: tensor<8xf32> {train.param = "a"}, %w: tensor<8xf32> {train.param = "b"}, %x: tensor<8xf32> {train.batch = "0"})
    -> tensor<8xf32> {
  // CHECK: %mask = aten.relu %x {pipe.stage = 0 : i64}
  // CHECK-NEXT: %mask.at1 = aten.relu %x.at1 {pipe.stage = 1 : i64}
  %mask = aten.relu %x : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: %a = aten.mul.Tensor %mask, %v {pipe.stage = 0 : i64}
  %a = aten.mul.Tensor %mask, %v : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc1")
  // CHECK-NEXT: %a.at1 = pipe.transfer "a.at1" %a to @stage1
  // CHECK-NEXT: %b = aten.mul.Tensor %a.at1, %w {pipe.stage = 1 : i64}
  %b = aten.mul.Tensor %a, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  // CHECK-NEXT: aten.mul.Tensor %b, %mask.at1 {pipe.stage = 1 : i64}
  %c = aten.mul.Tensor %b, %mask : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  func.return %c : tensor<8xf32>
}
