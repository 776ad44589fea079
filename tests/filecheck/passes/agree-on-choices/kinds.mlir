// RUN: opt-tool %s --pass-pipeline=agree-on-choices,select-collectives --mlir-print-debuginfo=false | filecheck %s

#fast = #spmd.device<"fast", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e8}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#node = #spmd.link<"node", alpha = 1.0e-6, beta = 1.0e-9>
#gpu = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
#rows = #spmd.sharding<@mesh, [{"node"}, {}]>
#columns = #spmd.sharding<@mesh, [{"gpu"}, {}]>

// Devices differ between nodes, and not inside a node.
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
spmd.cluster @four on @mesh devices [#fast, #slow] placement [0, 0, 1, 1] links [#node, #gpu]

// CHECK-LABEL: @step
func.func @step(
  %x: tensor<8x4xf32> {train.batch = "0"},
  %split: tensor<8x4xf32> {train.batch = "1", spmd.sharding = #rows},
  %inside: tensor<8x4xf32> {train.batch = "2", spmd.sharding = #columns},
  %i: tensor<8xi64> {train.batch = "3"}
) -> (tensor<8x2xi64>, tensor<8x4xi64>, tensor<8x2xi64> {spmd.sharding = #columns}, tensor<8xi64>, tensor<8x4xi1>) {
  // The first device along the node axis chooses, for each place inside a node; values stay local.
  // CHECK: %values, %chosen = aten.topk %x
  // CHECK-NEXT: %chosen.first = spmd.partial [{"node"}] %chosen out_sharding = <@mesh, [{}, {}], unreduced={"node"}>
  // CHECK-NEXT: %chosen.agreed = spmd.all_reduce [{"node"}] %chosen.first out_sharding = <@mesh, [{}, {}]>
  %values, %chosen = aten.topk %x {k = 2 : i64} : (tensor<8x4xf32>) -> (tensor<8x2xf32>, tensor<8x2xi64>)
  // CHECK-NEXT: %counted = aten.add.Scalar %chosen.agreed
  %counted = aten.add.Scalar %chosen {other = 1 : i64} : (tensor<8x2xi64>) -> tensor<8x2xi64>
  // Each node has different rows: no choice is made twice.
  // CHECK-NEXT: aten.sort %split
  // CHECK-NEXT: aten.topk %inside
  %s, %order = aten.sort %split
    {spmd.signature = #spmd.sig<@mesh, ([{"node"}, {}]) -> ([{"node"}, {}], [{"node"}, {}])>}
    : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xi64>)
  // Values that are split inside nodes stay split.
  // CHECK-NEXT: spmd.partial [{"node"}] %c out_sharding = <@mesh, [{"gpu"}, {}], unreduced={"node"}>
  // CHECK-NEXT: spmd.all_reduce [{"node"}]
  %v, %c = aten.topk %inside
    {k = 2 : i64, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>}
    : (tensor<8x4xf32>) -> (tensor<8x2xf32>, tensor<8x2xi64>)
  // Integers computed from integers, and booleans, are equal on all devices or nearly so.
  // CHECK-NEXT: aten.abs %i
  // CHECK-NEXT: aten.gt.Scalar %x
  // CHECK-NEXT: return
  %a = aten.abs %i : (tensor<8xi64>) -> tensor<8xi64>
  %g = aten.gt.Scalar %x {other = 0.0 : f64} : (tensor<8x4xf32>) -> tensor<8x4xi1>
  func.return %counted, %order, %c, %a, %g
    : tensor<8x2xi64>, tensor<8x4xi64>, tensor<8x2xi64>, tensor<8xi64>, tensor<8x4xi1>
}
