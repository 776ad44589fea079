// RUN: opt-tool %s --pass-pipeline=insert-resharding --verify-numerics | filecheck %s

// No shares of the devices give these offsets: one dim after the other is gathered, and then split.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#spmd.link<"node", alpha = 1.0e-6, beta = 1.0e-9>, #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

#from = #spmd.sharding<@mesh, [{"gpu"}, {"node"}], offsets={0: [0, 7, 8], 1: [0, 1, 4]}>
// CHECK-LABEL: func.func @step
// CHECK-NEXT: %[[A:.*]] = spmd.reshard %x to <@mesh, [{}, {"node"}], offsets={1: [0, 1, 4]}>
// CHECK-NEXT: %[[B:.*]] = spmd.reshard %[[A]] to <@mesh, [{}, {}]>
// CHECK-NEXT: %[[C:.*]] = spmd.reshard %[[B]] to <@mesh, [{"node"}, {}], offsets={0: [0, 2, 8]}>
// CHECK-NEXT: %[[D:.*]] = spmd.reshard %[[C]] to <@mesh, [{"node"}, {"gpu"}], offsets={0: [0, 2, 8], 1: [0, 3, 4]}>
// CHECK-NEXT: aten.neg %[[D]]
func.func @step(%x: tensor<8x4xf32> {spmd.sharding = #from}) -> tensor<8x4xf32> {
  %y = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{"node"}, {"gpu"}], offsets={0: [0, 2, 8], 1: [0, 3, 4]}) -> ([{"node"}, {"gpu"}], offsets={0: [0, 2, 8], 1: [0, 3, 4]})>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
