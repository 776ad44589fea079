// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=select-collectives

spmd.mesh @mesh = <["node"=2, "gpu"=2]>
func.func @step(%r: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node"}, {"gpu"}]>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{'spmd.reshard' op %a: no single collective converts [{"node"}, {"gpu"}] to [{"gpu"}, {"node"}]; run insert-resharding first}}
  %a = spmd.reshard %r to <@mesh, [{"gpu"}, {"node"}]> : tensor<8x8xf32>
  func.return %a : tensor<8x8xf32>
}
