// RUN: opt-tool %s --verify-diagnostics --pass-pipeline='partition-stages{stages=2}'

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// expected-error@+1 {{'func.func' op @step: has 1 layers, which cannot form 2 stages: fc1; ask for fewer stages}}
func.func @step(%v: tensor<8xf32> {train.param = "a"}) -> tensor<8xf32> {
  %a = aten.exp %v : (tensor<8xf32>) -> tensor<8xf32> loc("fc1")
  func.return %a : tensor<8xf32>
}
