// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=3}' | filecheck %s

// A value that skips a stage is sent directly to the stage that uses it.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=3]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]
func.func @step(%u: tensor<8xf32> {train.param = "a"}, %v: tensor<8xf32> {train.param = "b"}, %w: tensor<8xf32> {train.param = "c"})
    -> tensor<8xf32> {
  %a = aten.exp %u : (tensor<8xf32>) -> tensor<8xf32> loc("down")
  // CHECK: %a.at1 = pipe.transfer "a.at1" %a to @stage1
  // CHECK-NEXT: %a.at2 = pipe.transfer "a.at2" %a to @stage2
  // CHECK-NEXT: %b = aten.mul.Tensor %a.at1, %v {pipe.stage = 1 : i64}
  %b = aten.mul.Tensor %a, %v : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("middle")
  // CHECK-NEXT: %b.at2 = pipe.transfer "b.at2" %b to @stage2
  // CHECK-NEXT: %c = aten.mul.Tensor %b.at2, %a.at2 {pipe.stage = 2 : i64}
  %c = aten.mul.Tensor %b, %a : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("up")
  %d = aten.mul.Tensor %c, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("up")
  func.return %d : tensor<8xf32>
}
