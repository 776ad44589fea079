// RUN: opt-tool %s --pass-pipeline=duplex --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A sum over both parts that each part needs: it is computed once the second part is ready, and then the first continues.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>

func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  // CHECK: %p.a = spmd.slice
  // CHECK-NEXT: %s.a = aten.sum.dim_IntList %p.a
  // CHECK-NEXT: %p.b = spmd.slice
  // CHECK-NEXT: %s.b = aten.sum.dim_IntList %p.b
  // CHECK-NEXT: %s.sum = spmd.accumulate %s.a, %s.b out_sharding = <@mesh, [{}]> : tensor<4xf32>
  // CHECK-NEXT: %e = aten.exp %s.sum
  // CHECK-NEXT: %c.a = aten.sub.Tensor %p.a, %e {{.*}}spmd.at = {micro = 0 : i64}
  // CHECK-NEXT: %d.a = aten.sum %c.a
  // CHECK-NEXT: %c.b = aten.sub.Tensor %p.b, %e {{.*}}spmd.at = {micro = 1 : i64}
  // CHECK-NEXT: %d.b = aten.sum %c.b
  // CHECK-NEXT: %d.sum = spmd.accumulate %d.a, %d.b
  // CHECK-NEXT: %v = aten.neg %w
  // CHECK-NEXT: %f = aten.sum %v
  // CHECK-NEXT: %r = aten.mul.Tensor %d.sum, %f
  %v = aten.neg %w {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<4xf32>) -> tensor<4xf32>
  %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %s = aten.sum.dim_IntList %p {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{}], unreduced={"micro"})>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  %s.sum = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, [{}]> : tensor<4xf32>
  %e = aten.exp %s.sum {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<4xf32>) -> tensor<4xf32>
  %c = aten.sub.Tensor %p, %e {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}], [{}]) -> ([{"micro"}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %d = aten.sum %c {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>}
    : (tensor<8x4xf32>) -> tensor<f32>
  %d.sum = spmd.all_reduce [{"micro"}] %d out_sharding = <@mesh, []> : tensor<f32>
  %f = aten.sum %v {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<4xf32>) -> tensor<f32>
  %r = aten.mul.Tensor %d.sum, %f {spmd.signature = #spmd.sig<@mesh, ([], []) -> ([])>}
    : (tensor<f32>, tensor<f32>) -> tensor<f32>
  func.return %r : tensor<f32>
}
