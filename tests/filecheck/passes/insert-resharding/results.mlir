// RUN: opt-tool %s --pass-pipeline=insert-resharding --mlir-print-debuginfo=false | filecheck %s

// The new value of an argument goes to the argument's home, the loss becomes replicated, other results stay unchanged.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#whole = #spmd.sharding<@mesh, [{}, {}]>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK-LABEL: func.func @step
// CHECK-SAME: -> (tensor<8x8xf32> {train.updates = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, tensor<8x8xf32> {train.loss, spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}, tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}], unreduced={"gpu"}>})
func.func @step(%w: tensor<8x8xf32> {spmd.sharding = #rows}, %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>})
    -> (tensor<8x8xf32> {train.updates = 0 : i64}, tensor<8x8xf32> {train.loss}, tensor<8x8xf32>) {
  // CHECK-NEXT: %a = aten.mm %x, %w
  %a = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %a.reduce_scatter = spmd.reshard %a to <@mesh, [{"gpu"}, {}]>
  // CHECK-NEXT: %a.all_gather = spmd.reshard %a.reduce_scatter to <@mesh, [{}, {}]>
  // CHECK-NEXT: func.return %a.reduce_scatter, %a.all_gather, %a
  func.return %a, %a, %a : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
