// RUN: opt-tool %s -p 'balance-ratios{ratios="0.5,0.6"}' --verify-diagnostics

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
// expected-error@+1 {{ratios='0.5,0.6'}: the ratios [0.5, 0.6] of axis "gpu" sum to 1.1, expected 1}}
func.func @step(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) {
  func.return
}
