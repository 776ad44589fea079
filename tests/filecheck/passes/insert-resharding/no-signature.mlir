// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=insert-resharding

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#whole = #spmd.sharding<@mesh, [{}, {}]>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

func.func @step(%w: tensor<8x8xf32> {spmd.sharding = #rows}) -> tensor<8x8xf32> {
  // expected-error@+1 {{'aten.exp' op %a from "fc1" (model.py:3:4): has no signature; run search-strategy before insert-resharding}}
  %a = aten.exp %w : (tensor<8x8xf32>) -> tensor<8x8xf32> loc("fc1"("model.py":3:4))
  func.return %a : tensor<8x8xf32>
}
