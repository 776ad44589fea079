// RUN: opt-tool %s --pass-pipeline='check-memory' --verify-diagnostics

// The uneven shares are assigned to the wrong devices: rank 1 exceeds its memory the most.

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#spmd.device<"big", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 400.0, launch = 0.0>, #spmd.device<"small", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 100.0, launch = 0.0>] placement [0, 1] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]
func.func @step(%x: tensor<64xf32> {train.param = "x", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}], offsets={0: [0, 40, 64]}>}) -> tensor<64xf32> {
  // expected-error@+1 {{needs 192 bytes on rank 1, whose device has 100 bytes: 92 bytes too much}}
  %z = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], offsets={0: [0, 40, 64]}) -> ([{"gpu"}], offsets={0: [0, 40, 64]})>} : (tensor<64xf32>) -> tensor<64xf32>
  func.return %z : tensor<64xf32>
}
