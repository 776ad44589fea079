// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s

// Tensor parallelism: the gradient of the weight does not need the gradient of the input, and is computed while the
// latter is reduced.

#dx = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>
#dw = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>
#view = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([{"gpu"}, {}])>
#op = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>
#neg = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([{}, {"gpu"}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @backward
// CHECK-NEXT:    %g = aten.neg
// CHECK-NEXT:    %dx = aten.mm
// CHECK-NEXT:    spmd.start "all_reduce" %dx
// CHECK-NEXT:    %t = aten.t
// CHECK-NEXT:    %dw = aten.mm
// CHECK-NEXT:    %dx.sum = spmd.wait
// CHECK-NEXT:    %y = aten.neg
func.func @backward(%up: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>}, %w: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<8x4xf32>) {
  %g = aten.neg %up {spmd.signature = #neg} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %t = aten.t %g {spmd.signature = #view} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %dw = aten.mm %t, %x {spmd.signature = #dw} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %dx = aten.mm %g, %w {spmd.signature = #dx} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %dx.sum = spmd.all_reduce [{"gpu"}] %dx out_sharding = <@mesh, [{}, {}]> : tensor<4x4xf32>
  %y = aten.neg %dx.sum {spmd.signature = #op} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y, %dw : tensor<4x4xf32>, tensor<8x4xf32>
}
