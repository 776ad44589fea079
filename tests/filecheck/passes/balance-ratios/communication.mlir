// RUN: opt-tool %s -p balance-ratios --mlir-print-debuginfo=false | filecheck %s

// Where gathering costs more than the slower device does, equal shares are best (HAP 2.4).

#fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-7>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
// CHECK: func.func @step(%x: tensor<8x4xf32>
// CHECK-NOT: spmd.ratios
func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
    -> tensor<8x4xf32> {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %z = aten.relu %y {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %z : tensor<8x4xf32>
}
