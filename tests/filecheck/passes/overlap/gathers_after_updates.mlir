// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' | filecheck %s

// Parameters that are updated in parts and stored replicated (ZeRO-1): a bucket is gathered while the next is updated.

#grad = #spmd.sig<@mesh, ([{}, {}]) -> ([{}])>
#half = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#sgd = #spmd.sig<@mesh, ([{"gpu"}], [{"gpu"}], []) -> ([{"gpu"}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK:         %a.new = train.sgd
// CHECK-NEXT:    %a.all.started = spmd.start "all_gather" %a.new
// CHECK-NEXT:    %b.new = train.sgd
// CHECK-NEXT:    %b.all.started = spmd.start "all_gather" %b.new
// CHECK-NEXT:    %a.all = spmd.wait
// CHECK-NEXT:    %b.all = spmd.wait
// CHECK-NEXT:    func.return
func.func @step(%a: tensor<16xf32>, %b: tensor<16xf32>, %x: tensor<4x16xf32>, %lr: tensor<f32>) -> (tensor<16xf32>, tensor<16xf32>) {
  %g = aten.sum.dim_IntList %x {dim = [0 : i64], spmd.signature = #grad} : (tensor<4x16xf32>) -> tensor<16xf32>
  %h0 = spmd.slice [{"gpu"}] %g out_sharding = <@mesh, [{"gpu"}]> : tensor<16xf32>
  %a.part = spmd.slice [{"gpu"}] %a out_sharding = <@mesh, [{"gpu"}]> : tensor<16xf32>
  %a.new = train.sgd %a.part, %h0, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<16xf32>, tensor<16xf32>, tensor<f32>) -> tensor<16xf32>
  %h1 = spmd.slice [{"gpu"}] %g out_sharding = <@mesh, [{"gpu"}]> : tensor<16xf32>
  %b.part = spmd.slice [{"gpu"}] %b out_sharding = <@mesh, [{"gpu"}]> : tensor<16xf32>
  %b.new = train.sgd %b.part, %h1, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<16xf32>, tensor<16xf32>, tensor<f32>) -> tensor<16xf32>
  %a.all = spmd.all_gather [{"gpu"}] %a.new out_sharding = <@mesh, [{}]> : tensor<16xf32>
  %b.all = spmd.all_gather [{"gpu"}] %b.new out_sharding = <@mesh, [{}]> : tensor<16xf32>
  func.return %a.all, %b.all : tensor<16xf32>, tensor<16xf32>
}
