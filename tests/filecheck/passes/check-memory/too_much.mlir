// RUN: opt-tool %s --pass-pipeline='check-memory' --verify-diagnostics
// RUN: opt-tool %s --pass-pipeline='check-memory{limit=639}' --verify-diagnostics

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 639.0, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]
func.func @step(%x: tensor<64xf32> {train.param = "x", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<64xf32> {
  %y = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<64xf32>
  // expected-error@+1 {{639 bytes: 1 bytes too much (parameters 128 bytes, gathered 256 bytes, activations 256 bytes); the largest live here: %y (256 bytes), %z (256 bytes), %x (128 bytes)}}
  %z = aten.relu %y {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<64xf32>) -> tensor<64xf32>
  func.return %z : tensor<64xf32>
}
