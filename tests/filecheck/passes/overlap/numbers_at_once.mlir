// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s

// The reduction of a scalar starts as soon as it is computed, although it is needed much later (a reduction and an op
// take 1 s each): it holds no memory, and no rank waits in the middle of forward for a late one.

#valid = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>
#count = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>
#op = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#div = #spmd.sig<@mesh, ([{}], []) -> ([{}])>

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 32.0, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0, beta = 0.0>]

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    %valid = aten.ne.Scalar
// CHECK-NEXT:    %count = aten.sum
// CHECK-NEXT:    spmd.start "all_reduce" %count
// CHECK-COUNT-6: aten.neg
// CHECK-NEXT:    %count.sum = spmd.wait
// CHECK-NEXT:    %y = aten.div.Tensor
func.func @step(%labels: tensor<8xi64> {train.batch = "1", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}, %x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.neg %x {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %b = aten.neg %a {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %c = aten.neg %b {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %d = aten.neg %c {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %e = aten.neg %d {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %f = aten.neg %e {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %valid = aten.ne.Scalar %labels {other = -100 : i64, spmd.signature = #valid} : (tensor<8xi64>) -> tensor<8xi1>
  %count = aten.sum %valid {spmd.signature = #count} : (tensor<8xi1>) -> tensor<i64>
  %count.sum = spmd.all_reduce [{"gpu"}] %count out_sharding = <@mesh, []> : tensor<i64>
  %y = aten.div.Tensor %f, %count.sum {spmd.signature = #div} : (tensor<4xf32>, tensor<i64>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
