// RUN: opt-tool %s --pass-pipeline=insert-resharding | filecheck %s

// A resharding has the location of the op that needs it.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#whole = #spmd.sharding<@mesh, [{}, {}]>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

func.func @step(%w: tensor<8x8xf32> {spmd.sharding = #rows}) -> tensor<8x8xf32> {
  // CHECK: spmd.reshard %w to <@mesh, [{}, {}]> : tensor<8x8xf32> loc("fc1"("model.py":3:4))
  %a = aten.exp %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>) -> tensor<8x8xf32> loc("fc1"("model.py":3:4))
  func.return %a : tensor<8x8xf32>
}
