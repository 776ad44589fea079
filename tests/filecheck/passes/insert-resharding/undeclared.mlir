// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=insert-resharding

// Offsets of two dims that the function's ratios do not have: no single collective leads there.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#node = #spmd.link<"node", alpha = 1.0e-6, beta = 1.0e-9>
#gpu = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#node, #gpu]
func.func @step(%x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {"node"}]>}) -> tensor<8x6xf32> {
  // expected-error@+1 {{cannot have %x: no collectives lead from [{"gpu"}, {"node"}] to [{"gpu"}, {"node"}], offsets={0: [0, 5, 8], 1: [0, 2, 6]} for a value of shape [8, 6]; its offsets are not those of the function's spmd.ratios: [{"gpu"}, {"node"}], offsets={0: [0, 5, 8], 1: [0, 2, 6]} where [{"gpu"}, {"node"}] is expected; declare the shares (balance-ratios{ratios=...}), or sign the op so}}
  %y = aten.exp %x {spmd.signature = #spmd.sig<@mesh,
    ([{"gpu"}, {"node"}], offsets={0: [0, 5, 8], 1: [0, 2, 6]}) -> ([{"gpu"}, {"node"}], offsets={0: [0, 5, 8], 1: [0, 2, 6]})>
  } : (tensor<8x6xf32>) -> tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}
