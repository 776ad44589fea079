// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0.001}' | filecheck %s

// A bucket has two gradients of 512 bytes, in the order in which they are ready: it starts when the second gradient is.
// The updates follow in the order of the buckets, each bucket's wait right before the first.

#grad = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
#pass = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>
#sgd = #spmd.sig<@mesh, ([{}], [{}], []) -> ([{}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK:         %g2 = aten.sum.dim_IntList
// CHECK-NEXT:    %g1 = aten.neg %g2
// CHECK-NEXT:    %r2.started = spmd.start "all_reduce" %g2, %g1
// CHECK-NEXT:    %g0 = aten.neg %g1
// CHECK-NEXT:    %r0.started = spmd.start "all_reduce" %g0 out
// CHECK-NEXT:    %r2, %r1 = spmd.wait
// CHECK-NEXT:    %b.new = train.sgd
// CHECK-NEXT:    %c.new = train.sgd
// CHECK-NEXT:    %r0 = spmd.wait
// CHECK-NEXT:    %a.new = train.sgd
func.func @step(%a: tensor<128xf32>, %b: tensor<128xf32>, %c: tensor<128xf32>, %x: tensor<4x128xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %lr: tensor<f32>) -> (tensor<128xf32>, tensor<128xf32>, tensor<128xf32>) {
  %g2 = aten.sum.dim_IntList %x {dim = [0 : i64], spmd.signature = #grad} : (tensor<4x128xf32>) -> tensor<128xf32>
  %g1 = aten.neg %g2 {spmd.signature = #pass} : (tensor<128xf32>) -> tensor<128xf32>
  %g0 = aten.neg %g1 {spmd.signature = #pass} : (tensor<128xf32>) -> tensor<128xf32>
  %r0 = spmd.all_reduce [{"gpu"}] %g0 out_sharding = <@mesh, [{}]> : tensor<128xf32>
  %a.new = train.sgd %a, %r0, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<128xf32>, tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  %r1 = spmd.all_reduce [{"gpu"}] %g1 out_sharding = <@mesh, [{}]> : tensor<128xf32>
  %b.new = train.sgd %b, %r1, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<128xf32>, tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  %r2 = spmd.all_reduce [{"gpu"}] %g2 out_sharding = <@mesh, [{}]> : tensor<128xf32>
  %c.new = train.sgd %c, %r2, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<128xf32>, tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  func.return %a.new, %b.new, %c.new : tensor<128xf32>, tensor<128xf32>, tensor<128xf32>
}
