// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' | filecheck %s

// With the times of a cluster, a gather starts when three times its duration is left: 3 * 1 s, with ops of 1 s.

#op = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#add = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 32.0, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0, beta = 0.0>]

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    %a = aten.neg
// CHECK-NEXT:    %b = aten.neg
// CHECK-NEXT:    spmd.start
// CHECK-NEXT:    %c = aten.neg
// CHECK-NEXT:    %d = aten.neg
// CHECK-NEXT:    %e = aten.neg
// CHECK-NEXT:    %w.all = spmd.wait
// CHECK-NEXT:    %f = aten.add.Tensor
func.func @step(%x: tensor<4xf32>, %w: tensor<4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<4xf32> {
  %a = aten.neg %x {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %b = aten.neg %a {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %c = aten.neg %b {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %d = aten.neg %c {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %e = aten.neg %d {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %w.all = spmd.all_gather [{"gpu"}] %w out_sharding = <@mesh, [{}]> : tensor<4xf32>
  %f = aten.add.Tensor %e, %w.all {spmd.signature = #add} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %f : tensor<4xf32>
}
