// RUN: opt-tool %s --pass-pipeline=insert-resharding --mlir-print-debuginfo=false | filecheck %s

// An all-reduce over both axes of a cluster with a slow network between its nodes is hierarchical: reduce-scatter inside
// the node, all-reduce of the parts between the nodes, all-gather inside.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.link<"node", alpha = 1.0e-5, beta = 1.0e-8>
#fast = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-10>
#sums = #spmd.sharding<@mesh, [{}], unreduced={"node", "gpu"}>
spmd.mesh @mesh = <["node"=2, "gpu"=4]>
spmd.cluster @eight on @mesh devices [#cpu] placement [0, 0, 0, 0, 0, 0, 0, 0] links [#slow, #fast]

// CHECK-LABEL: func.func @large
func.func @large(%g: tensor<1048576xf32> {spmd.sharding = #sums}) -> tensor<1048576xf32> {
  // CHECK-NEXT: %g.reduce_scatter = spmd.reshard %g to <@mesh, [{"gpu"}], unreduced={"node"}>
  // CHECK-NEXT: %g.all_reduce = spmd.reshard %g.reduce_scatter to <@mesh, [{"gpu"}]>
  // CHECK-NEXT: %g.all_gather = spmd.reshard %g.all_reduce to <@mesh, [{}]>
  // CHECK-NEXT: %a = aten.exp %g.all_gather
  %a = aten.exp %g {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<1048576xf32>) -> tensor<1048576xf32>
  func.return %a : tensor<1048576xf32>
}

// A value so small that only latency counts takes one message: two would save less than a tenth of its time.
// CHECK-LABEL: func.func @small
func.func @small(%g: tensor<8xf32> {spmd.sharding = #sums}) -> tensor<8xf32> {
  // CHECK-NEXT: %g.all_reduce = spmd.reshard %g to <@mesh, [{}]> : tensor<8xf32>
  // CHECK-NEXT: %a = aten.exp %g.all_reduce {
  %a = aten.exp %g {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<8xf32>) -> tensor<8xf32>
  func.return %a : tensor<8xf32>
}
