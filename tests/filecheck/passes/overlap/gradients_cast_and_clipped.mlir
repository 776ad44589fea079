// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s

// Gradients that are reduced in bfloat16, cast, and scaled by their norm share one bucket: the casts and scalings
// follow its wait, as the updates do.

#grad = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
#same = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#norm = #spmd.sig<@mesh, ([{}]) -> ([])>
#both = #spmd.sig<@mesh, ([], []) -> ([])>
#scale = #spmd.sig<@mesh, ([{}], []) -> ([{}])>
#sgd = #spmd.sig<@mesh, ([{}], [{}], []) -> ([{}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    %ga = aten.sum.dim_IntList
// CHECK-NEXT:    %gb = aten.sum.dim_IntList
// CHECK-NEXT:    %ra.started = spmd.start "all_reduce" %ga, %gb
// CHECK-NEXT:    %ra, %rb = spmd.wait
// CHECK-NEXT:    %ca = aten._to_copy %ra
// CHECK-NEXT:    %na = aten.sum %ca
// CHECK-NEXT:    %cb = aten._to_copy %rb
// CHECK-NEXT:    %nb = aten.sum %cb
// CHECK-NEXT:    %n = aten.add.Tensor %na, %nb
// CHECK:         %a.new = train.sgd
// CHECK:         %b.new = train.sgd
func.func @step(%a: tensor<128xf32>, %b: tensor<128xf32>, %x: tensor<4x128xbf16> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %y: tensor<4x128xbf16> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %lr: tensor<f32>) -> (tensor<128xf32>, tensor<128xf32>, tensor<f32>) {
  %ga = aten.sum.dim_IntList %x {dim = [0 : i64], train.backward, spmd.signature = #grad} : (tensor<4x128xbf16>) -> tensor<128xbf16>
  %ra = spmd.all_reduce [{"gpu"}] %ga out_sharding = <@mesh, [{}]> : tensor<128xbf16>
  %ca = aten._to_copy %ra {dtype = f32, train.backward, spmd.signature = #same} : (tensor<128xbf16>) -> tensor<128xf32>
  %na = aten.sum %ca {spmd.signature = #norm} : (tensor<128xf32>) -> tensor<f32>
  %gb = aten.sum.dim_IntList %y {dim = [0 : i64], train.backward, spmd.signature = #grad} : (tensor<4x128xbf16>) -> tensor<128xbf16>
  %rb = spmd.all_reduce [{"gpu"}] %gb out_sharding = <@mesh, [{}]> : tensor<128xbf16>
  %cb = aten._to_copy %rb {dtype = f32, train.backward, spmd.signature = #same} : (tensor<128xbf16>) -> tensor<128xf32>
  %nb = aten.sum %cb {spmd.signature = #norm} : (tensor<128xf32>) -> tensor<f32>
  %n = aten.add.Tensor %na, %nb {spmd.signature = #both} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %sa = aten.mul.Tensor %ca, %n {spmd.signature = #scale} : (tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  %a.new = train.sgd %a, %sa, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<128xf32>, tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  %sb = aten.mul.Tensor %cb, %n {spmd.signature = #scale} : (tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  %b.new = train.sgd %b, %sb, %lr {absent = ["momentum_buffer", "step"], spmd.signature = #sgd} : (tensor<128xf32>, tensor<128xf32>, tensor<f32>) -> tensor<128xf32>
  func.return %a.new, %b.new, %n : tensor<128xf32>, tensor<128xf32>, tensor<f32>
}
