// RUN: opt-tool %s --pass-pipeline=insert-resharding --mlir-print-debuginfo=false | filecheck %s

// A working copy that is regathered lives once in forward and once in backward; one that is not is made once.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#whole = #spmd.sharding<@mesh, [{}, {}]>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK-LABEL: func.func @step
func.func @step(
  %w: tensor<8x8xf32> {spmd.sharding = #rows, spmd.working = #whole, spmd.regather = true},
  %v: tensor<8x8xf32> {spmd.sharding = #rows, spmd.working = #whole},
  %x: tensor<8x8xf32> {spmd.sharding = #whole}
) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  // CHECK-NEXT: %w.all_gather = spmd.reshard %w to <@mesh, [{}, {}]> : tensor<8x8xf32>
  // CHECK-NEXT: %a = aten.mm %x, %w.all_gather
  %a = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %v.all_gather = spmd.reshard %v to <@mesh, [{}, {}]> : tensor<8x8xf32>
  // CHECK-NEXT: %b = aten.mm %a, %v.all_gather
  %b = aten.mm %a, %v {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %c = aten.mm %b, %v.all_gather
  %c = aten.mm %b, %v {train.backward, spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %w.all_gather_1 = spmd.reshard %w to <@mesh, [{}, {}]> regather {train.backward} : tensor<8x8xf32>
  // CHECK-NEXT: %d = aten.mm %c, %w.all_gather_1
  %d = aten.mm %c, %w {train.backward, spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %b, %d : tensor<8x8xf32>, tensor<8x8xf32>
}
