// RUN: opt-tool %s -p balance-ratios --mlir-print-debuginfo=false | filecheck %s

// By speed the second device would take three quarters of the rows; its memory holds 20 of them and their results.

#roomy = #spmd.device<"roomy", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e6, launch = 0.0>
#small = #spmd.device<"small", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 711.2, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#roomy, #small] placement [0, 1] links [#link]
// CHECK: %x: tensor<64x4xf32> {{.*}}offsets={0: [0, 44, 64]}
func.func @step(%x: tensor<64x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
    -> tensor<64x4xf32> {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<64x4xf32>) -> tensor<64x4xf32>
  func.return %y : tensor<64x4xf32>
}
