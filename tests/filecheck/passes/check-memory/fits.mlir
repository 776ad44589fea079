// RUN: opt-tool %s --pass-pipeline='check-memory' | filecheck %s

// Each rank has 128 bytes of %x, and all 256 of %y and %z: exactly the device's memory. The view needs no memory.

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 640.0, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    spmd.all_gather
// CHECK-NEXT:    aten.t
// CHECK-NEXT:    aten.relu
// CHECK-NEXT:    func.return
func.func @step(%x: tensor<8x8xf32> {train.param = "x", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) -> tensor<8x8xf32> {
  %y = spmd.all_gather [{"gpu"}, {}] %x out_sharding = <@mesh, [{}, {}]> : tensor<8x8xf32>
  %t = aten.t %y {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %z = aten.relu %t {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %z : tensor<8x8xf32>
}
