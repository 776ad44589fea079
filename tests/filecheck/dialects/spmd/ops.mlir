// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --mlir-print-op-generic | opt-tool --mlir-print-debuginfo=false | filecheck %s

#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#sums = #spmd.sharding<@mesh, [{}, {}], unreduced={"gpu"}>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @collectives
func.func @collectives(%x: tensor<4x6xf32>, %r: tensor<4x6xf32> {spmd.sharding = #rows}, %p: tensor<4x6xf32> {spmd.sharding = #sums}) {
  // CHECK-NEXT: %a = spmd.reshard %x to <@mesh, [{"gpu"}, {}]> : tensor<4x6xf32>
  %a = spmd.reshard %x to <@mesh, [{"gpu"}, {}]> : tensor<4x6xf32>
  // CHECK-NEXT: %b = spmd.reshard %r to <@mesh, [{}, {}]> regather : tensor<4x6xf32>
  %b = spmd.reshard %r to <@mesh, [{}, {}]> regather : tensor<4x6xf32>
  // CHECK-NEXT: %c = spmd.all_gather [{"gpu"}, {}] %r out_sharding = <@mesh, [{}, {}]> method = "flat" regather : tensor<4x6xf32>
  %c = spmd.all_gather [{"gpu"}, {}] %r out_sharding = <@mesh, [{}, {}]> method = "flat" regather : tensor<4x6xf32>
  // CHECK-NEXT: %d = spmd.all_reduce [{"gpu"}] %p out_sharding = <@mesh, [{}, {}]> : tensor<4x6xf32>
  %d = spmd.all_reduce [{"gpu"}] %p out_sharding = <@mesh, [{}, {}]> : tensor<4x6xf32>
  // CHECK-NEXT: %e = spmd.reduce_scatter [{}, {"gpu"}] %p out_sharding = <@mesh, [{}, {"gpu"}]> : tensor<4x6xf32>
  %e = spmd.reduce_scatter [{}, {"gpu"}] %p out_sharding = <@mesh, [{}, {"gpu"}]> : tensor<4x6xf32>
  // CHECK-NEXT: %f = spmd.all_to_all [{}, {"gpu"}] %r out_sharding = <@mesh, [{}, {"gpu"}]> : tensor<4x6xf32>
  %f = spmd.all_to_all [{}, {"gpu"}] %r out_sharding = <@mesh, [{}, {"gpu"}]> : tensor<4x6xf32>
  // CHECK-NEXT: %g = spmd.slice [{"gpu"}, {}] %x out_sharding = <@mesh, [{"gpu"}, {}]> : tensor<4x6xf32>
  %g = spmd.slice [{"gpu"}, {}] %x out_sharding = <@mesh, [{"gpu"}, {}]> : tensor<4x6xf32>
  // CHECK-NEXT: %h = spmd.partial [{"gpu"}] %x out_sharding = <@mesh, [{}, {}], unreduced={"gpu"}> : tensor<4x6xf32>
  %h = spmd.partial [{"gpu"}] %x out_sharding = <@mesh, [{}, {}], unreduced={"gpu"}> : tensor<4x6xf32>
  func.return
}

// One start may carry several values.
// CHECK-LABEL: func.func @halves
func.func @halves(%r: tensor<4x6xf32> {spmd.sharding = #rows}, %s: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) {
  // CHECK-NEXT: %t = spmd.start "all_gather" %r, %s out_shardings = [#spmd.sharding<@mesh, [{}, {}]>, #spmd.sharding<@mesh, [{}]>] method = "flat" : tensor<4x6xf32>, tensor<8xf32>
  %t = spmd.start "all_gather" %r, %s out_shardings = [#spmd.sharding<@mesh, [{}, {}]>, #spmd.sharding<@mesh, [{}]>] method = "flat" : tensor<4x6xf32>, tensor<8xf32>
  // CHECK-NEXT: %a, %b = spmd.wait %t : tensor<4x6xf32>, tensor<8xf32>
  %a, %b = spmd.wait %t : tensor<4x6xf32>, tensor<8xf32>
  // CHECK-NEXT: spmd.free %a, %b : tensor<4x6xf32>, tensor<8xf32>
  spmd.free %a, %b : tensor<4x6xf32>, tensor<8xf32>
  func.return
}
