// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2 chunks=2 begins="0,1,2,3"}' | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='partition-stages{stages=2 chunks=3}' 2>&1 | filecheck %s --check-prefix=MANY
// RUN: not opt-tool %s --pass-pipeline='partition-stages{stages=1 chunks=2}' 2>&1 | filecheck %s --check-prefix=ONE

// With two chunks on each of two stages, layers alternate between the stages, and values return to the first stage.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// MANY: has 5 layers, which cannot form 2 stages of 3 chunks: fc1, fc2, fc3, fc4, fc5; ask for fewer stages or chunks
// ONE: chunks=2 of 1 stages: expected at least one chunk, or several stages
func.func @step(%x: tensor<64x64xf32> {train.batch = "0"}, %w: tensor<64x64xf32> {train.param = "w"}) -> tensor<64x64xf32> {
  // CHECK: %a = aten.mm %x, %w {pipe.stage = 0 : i64}
  %a = aten.mm %x, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc1")
  // CHECK: %a.at1 = pipe.transfer "a.at1" %a to @stage1
  // CHECK: %b = aten.mm %a.at1, %w.at1 {pipe.stage = 1 : i64}
  %b = aten.mm %a, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
  // CHECK: %c = aten.mm %b.at0, %w {pipe.stage = 0 : i64}
  %c = aten.mm %b, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc3")
  // CHECK: %d = aten.mm %c.at1, %w.at1 {pipe.stage = 1 : i64}
  %d = aten.mm %c, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc4")
  // CHECK: %e = aten.relu %d {pipe.stage = 1 : i64}
  %e = aten.relu %d : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc5")
  func.return %e : tensor<64x64xf32>
}
