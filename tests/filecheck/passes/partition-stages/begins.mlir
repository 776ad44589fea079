// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2 begins="0,2"}' | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='partition-stages{stages=2 begins="0,3"}' 2>&1 | filecheck %s --check-prefix=WRONG

// Stages begin at the given layers, although a stage with both products is a slow division.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// WRONG: begins="0,3": expected 2 ascending numbers of layers, the first 0; the layers are 0 fc1, 1 fc2, 2 fc3
func.func @step(%x: tensor<64x64xf32> {train.batch = "0"}, %w: tensor<64x64xf32> {train.param = "w"}) -> tensor<64x64xf32> {
  // CHECK: %a = aten.mm %x, %w {pipe.stage = 0 : i64}
  %a = aten.mm %x, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc1")
  // CHECK: %b = aten.mm %a, %w {pipe.stage = 0 : i64}
  %b = aten.mm %a, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
  // CHECK: %c = aten.relu %b.at1 {pipe.stage = 1 : i64}
  %c = aten.relu %b : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc3")
  func.return %c : tensor<64x64xf32>
}
