// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s

// A scalar that few ops compute from the batch is computed first, and reduced while the rest runs.

#valid = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>
#count = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>
#mm = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>
#div = #spmd.sig<@mesh, ([{"gpu"}, {}], []) -> ([{"gpu"}, {}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    %valid = aten.ne.Scalar
// CHECK-NEXT:    %count = aten.sum
// CHECK-NEXT:    spmd.start "all_reduce" %count
// CHECK-NEXT:    %h = aten.mm
// CHECK-NEXT:    %count.sum = spmd.wait
// CHECK-NEXT:    %y = aten.div.Tensor
func.func @step(%labels: tensor<8xi64> {train.batch = "1", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}, %x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %h = aten.mm %x, %w {spmd.signature = #mm} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %valid = aten.ne.Scalar %labels {other = -100 : i64, spmd.signature = #valid} : (tensor<8xi64>) -> tensor<8xi1>
  %count = aten.sum %valid {spmd.signature = #count} : (tensor<8xi1>) -> tensor<i64>
  %count.sum = spmd.all_reduce [{"gpu"}] %count out_sharding = <@mesh, []> : tensor<i64>
  %y = aten.div.Tensor %h, %count.sum {spmd.signature = #div} : (tensor<8x4xf32>, tensor<i64>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
