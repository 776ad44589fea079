// RUN: opt-tool %s --pass-pipeline=select-collectives --mlir-print-debuginfo=false | filecheck %s

#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#sums = #spmd.sharding<@mesh, [{}, {}], unreduced={"gpu"}>
spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8x6xf32>, %r: tensor<8x6xf32> {spmd.sharding = #rows}, %p: tensor<8x6xf32> {spmd.sharding = #sums})
    -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
  // CHECK-NEXT: %a = spmd.all_gather [{"gpu"}, {}] %r out_sharding = <@mesh, [{}, {}]> method = "flat" :
  %a = spmd.reshard %r to <@mesh, [{}, {}]> : tensor<8x6xf32>
  // CHECK-NEXT: %b = spmd.all_to_all [{}, {"gpu"}] %r out_sharding = <@mesh, [{}, {"gpu"}]> method = "flat" :
  %b = spmd.reshard %r to <@mesh, [{}, {"gpu"}]> : tensor<8x6xf32>
  // CHECK-NEXT: %c = spmd.all_reduce [{"gpu"}] %p out_sharding = <@mesh, [{}, {}]> method = "flat" :
  %c = spmd.reshard %p to <@mesh, [{}, {}]> : tensor<8x6xf32>
  // CHECK-NEXT: %d = spmd.reduce_scatter [{"gpu"}, {}] %p out_sharding = <@mesh, [{"gpu"}, {}]> method = "flat" :
  %d = spmd.reshard %p to <@mesh, [{"gpu"}, {}]> : tensor<8x6xf32>
  // A local change has no method.
  // CHECK-NEXT: %e = spmd.slice [{"gpu"}, {}] %x out_sharding = <@mesh, [{"gpu"}, {}]> :
  %e = spmd.reshard %x to <@mesh, [{"gpu"}, {}]> : tensor<8x6xf32>
  // CHECK-NEXT: %f = spmd.partial [{"gpu"}] %x out_sharding = <@mesh, [{}, {}], unreduced={"gpu"}> :
  %f = spmd.reshard %x to <@mesh, [{}, {}], unreduced={"gpu"}> : tensor<8x6xf32>
  func.return %a, %b, %c, %d, %e, %f : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
}
