// RUN: opt-tool %s --verify-diagnostics --pass-pipeline='partition-stages{stages=2}'

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=1]>
spmd.cluster @two on @mesh devices [#cpu] placement [0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]
// expected-error@+1 {{the 1 ranks of mesh <["gpu"=1]> cannot be divided into 2 stages}}
func.func @step(%v: tensor<8xf32> {train.param = "a"}, %w: tensor<8xf32> {train.param = "b"}) -> tensor<8xf32> {
  %a = aten.exp %v : (tensor<8xf32>) -> tensor<8xf32> loc("fc1")
  %b = aten.mul.Tensor %a, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  func.return %b : tensor<8xf32>
}
