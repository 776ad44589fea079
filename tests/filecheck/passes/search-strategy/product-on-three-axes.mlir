// RUN: opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/cube.toml"},insert-resharding,select-collectives' --verify-numerics \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// A 2.5-D product: an axis for each of the three factors, and each matrix stored once. One collective reshards each operand
// into the form that the product takes, since z and x divide a dim in this order, too.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e12}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
#x = #spmd.link<"x", alpha = 1.0e-9, beta = 1.0e-9>
#y = #spmd.link<"y", alpha = 1.0e-9, beta = 1.0e-9>
#z = #spmd.link<"z", alpha = 1.0e-9, beta = 1.0e-9>
spmd.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
spmd.cluster @cube on @mesh devices [#cpu] placement [0, 0, 0, 0, 0, 0, 0, 0] links [#x, #y, #z]

// CHECK-LABEL: func.func @step
// CHECK:      %a.all_gather = spmd.all_gather [{"y"}, {}] %a out_sharding = <@mesh, [{"x"}, {"z"}]>
// CHECK-NEXT: %b.all_gather = spmd.all_gather [{"x"}, {}] %b out_sharding = <@mesh, [{"z"}, {"y"}]>
// CHECK-NEXT: %d = aten.mm %a.all_gather, %b.all_gather
// CHECK-NEXT: %d.reduce_scatter = spmd.reduce_scatter [{}, {"z"}] %d out_sharding = <@mesh, [{"x"}, {"y", "z"}]>
// CHECK-NEXT: func.return
func.func @step(
  %a: tensor<64x64xf32> {train.param = "a"},
  %b: tensor<64x64xf32> {train.param = "b"},
  %c: tensor<64x64xf32> {train.param = "c"}
) -> (tensor<64x64xf32> {train.updates = 2 : i64}) {
  %d = aten.mm %a, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}
