// RUN: opt-tool %s -p balance-ratios --mlir-print-debuginfo=false | filecheck %s

// One axis at a time, the others fixed: nodes by their slower device, and devices of a node equally.

#fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#node = #spmd.link<"node", alpha = 1.0e-6, beta = 1.0e-9>
#gpu = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
spmd.cluster @four on @mesh devices [#fast, #slow] placement [0, 0, 1, 1] links [#node, #gpu]
// CHECK: offsets={0: [0, 6, 12, 14, 16]}
// CHECK: spmd.ratios = [#spmd.ratios<@mesh, {"node" = [0.75, 0.25]}>]
func.func @step(%x: tensor<16xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}]>})
    -> tensor<16xf32> {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"node", "gpu"}]) -> ([{"node", "gpu"}])>}
    : (tensor<16xf32>) -> tensor<16xf32>
  func.return %y : tensor<16xf32>
}
