// RUN: opt-tool %s --pass-pipeline=insert-resharding --mlir-print-debuginfo=false | filecheck %s

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#uneven = #spmd.sharding<@mesh, [{"gpu"}, {}], offsets={0: [0, 5, 8]}>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// From uneven rows to columns is one all-to-all, and so is moving the boundaries of the rows.
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8x6xf32> {spmd.sharding = #uneven}) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  // CHECK-NEXT: %x.all_to_all = spmd.reshard %x to <@mesh, [{}, {"gpu"}]>
  // CHECK-NEXT: %a = aten.exp %x.all_to_all
  %a = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([{}, {"gpu"}])>} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  // CHECK-NEXT: %x.[[MOVED:.*]] = spmd.reshard %x to <@mesh, [{"gpu"}, {}]>
  // CHECK-NEXT: %b = aten.exp %x.[[MOVED]]
  %b = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  func.return %a, %b : tensor<8x6xf32>, tensor<8x6xf32>
}
