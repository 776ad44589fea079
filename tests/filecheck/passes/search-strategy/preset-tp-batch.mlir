// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=fixed pins="%S/Inputs/tp.toml"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// Tensor parallelism never splits the batch instead of a matrix, though that would send less than its sums do.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(
  // CHECK: %v: tensor<32x16xf32> {train.param = "up", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>}
  %v: tensor<32x16xf32> {train.param = "up"},
  // CHECK: %w: tensor<16x32xf32> {train.param = "down", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}
  %w: tensor<16x32xf32> {train.param = "down"},
  %x: tensor<4096x32xf32> {train.batch = "0"}
) -> tensor<4096x32xf32> {
  // CHECK: aten.mm %x, %v {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>}
  %a = aten.mm %x, %v : (tensor<4096x32xf32>, tensor<32x16xf32>) -> tensor<4096x16xf32>
  // CHECK: aten.mm %a, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>}
  %b = aten.mm %a, %w : (tensor<4096x16xf32>, tensor<16x32xf32>) -> tensor<4096x32xf32>
  func.return %b : tensor<4096x32xf32>
}
