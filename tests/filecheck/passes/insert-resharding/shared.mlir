// RUN: opt-tool %s --pass-pipeline=insert-resharding --mlir-print-debuginfo=false | filecheck %s

// Users with the same demand share one copy, made before the first of them; a user that takes the home needs none.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#whole = #spmd.sharding<@mesh, [{}, {}]>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK-LABEL: func.func @step
func.func @step(%w: tensor<8x8xf32> {spmd.sharding = #rows}, %x: tensor<8x8xf32> {spmd.sharding = #whole}) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  // CHECK-NEXT: %a = aten.exp %w
  %a = aten.exp %w {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %w.all_gather = spmd.reshard %w to <@mesh, [{}, {}]>
  // CHECK-NEXT: %b = aten.mm %x, %w.all_gather
  %b = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %c = aten.mm %w.all_gather, %x
  %c = aten.mm %w, %x {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: func.return
  func.return %a, %b, %c : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
