// RUN: opt-tool %s --pass-pipeline=strip-resharding --mlir-print-debuginfo=false | filecheck %s

// Reshardings, collectives, their halves and frees are removed; signatures, homes and names of values stay.

#rows = #spmd.sharding<@mesh, [{"gpu"}]>
spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
// CHECK-SAME: %x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}
func.func @step(%x: tensor<8xf32> {spmd.sharding = #rows}) -> (tensor<8xf32>, tensor<8xf32>) {
  // CHECK-NEXT: %a = aten.relu %x {spmd.signature
  %0 = spmd.reshard %x to <@mesh, [{}]> : tensor<8xf32>
  %a = aten.relu %0 {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: %b = aten.exp %a
  %1 = spmd.slice [{"gpu"}] %a out_sharding = <@mesh, [{"gpu"}]> : tensor<8xf32>
  %b = aten.exp %1 {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>} : (tensor<8xf32>) -> tensor<8xf32>
  %t = spmd.start "all_gather" %b, %x out_shardings = [#spmd.sharding<@mesh, [{}]>, #spmd.sharding<@mesh, [{}]>] : tensor<8xf32>, tensor<8xf32>
  %c, %d = spmd.wait %t : tensor<8xf32>, tensor<8xf32>
  spmd.free %a, %b : tensor<8xf32>, tensor<8xf32>
  // CHECK-NEXT: func.return %b, %x
  func.return %c, %d : tensor<8xf32>, tensor<8xf32>
}
