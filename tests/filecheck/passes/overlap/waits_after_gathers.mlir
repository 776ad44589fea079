// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 prefetch=0}' --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A reduce-scatter has ended when a later collective over the same axes has: its wait follows right after that one,
// and not before the update, so that the gradient can be freed. Collectives over other axes tell nothing about it.

#whole = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#both = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>
#dp = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{}], unreduced={"dp"})>
#tp = #spmd.sig<@mesh, ([{"tp"}, {}]) -> ([{}], unreduced={"tp"})>
#half = #spmd.sharding<@mesh, [{"dp"}]>
#rows = #spmd.sharding<@mesh, [{"dp"}, {}]>

spmd.mesh @mesh = <["dp"=2, "tp"=2]>

// CHECK-LABEL: func.func @step
// CHECK:         %g.own.started = spmd.start "reduce_scatter" %g
// CHECK:         %h.own.started = spmd.start "reduce_scatter" %h
// CHECK:         %w.all.started = spmd.start "all_gather" %w
// CHECK:         %w.all = spmd.wait
// CHECK-NEXT:    %g.own = spmd.wait
// CHECK-NEXT:    %e = aten.mul.Tensor
// CHECK-NEXT:    %f = aten.neg
// CHECK-NEXT:    %h.own = spmd.wait
func.func @step(%v: tensor<8xf32> {train.param = "v", spmd.sharding = #half},
    %w: tensor<8xf32> {train.param = "w", spmd.sharding = #half}, %x: tensor<4x8xf32> {spmd.sharding = #rows},
    %y: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}, %z: tensor<8xf32>)
    -> (tensor<8xf32> {spmd.sharding = #half}, tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>}, tensor<8xf32>) {
  %v.all = spmd.all_gather [{"dp"}] %v out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %a = aten.mul.Tensor %z, %v.all {spmd.signature = #both} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %g = aten.sum.dim_IntList %x {dim = [0 : i64], spmd.signature = #dp} : (tensor<4x8xf32>) -> tensor<8xf32>
  %h = aten.sum.dim_IntList %y {dim = [0 : i64], spmd.signature = #tp} : (tensor<4x8xf32>) -> tensor<8xf32>
  %b = aten.mul.Tensor %a, %v.all {spmd.signature = #both} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %c = aten.neg %b {spmd.signature = #whole} : (tensor<8xf32>) -> tensor<8xf32>
  %w.all = spmd.all_gather [{"dp"}] %w out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %e = aten.mul.Tensor %c, %w.all {spmd.signature = #both} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %f = aten.neg %e {spmd.signature = #whole} : (tensor<8xf32>) -> tensor<8xf32>
  %g.own = spmd.reduce_scatter [{"dp"}] %g out_sharding = <@mesh, [{"dp"}]> : tensor<8xf32>
  %h.own = spmd.reduce_scatter [{"tp"}] %h out_sharding = <@mesh, [{"tp"}]> : tensor<8xf32>
  func.return %g.own, %h.own, %f : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
