// RUN: opt-tool %s --pass-pipeline=accumulate,insert-frees --mlir-print-debuginfo=false | filecheck %s

// Operands of the loop stay before it, users of the loop come after it; sums over the parts stay outside, and a
// fragment frees its values.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=1]>
func.func @step(%x: tensor<8xf32> {train.batch = "0"}, %w: tensor<8xf32>) -> (tensor<f32>, tensor<f32>) {
  // CHECK: %e = aten.exp %w
  // CHECK-NEXT: %a, %d = pipe.fragment "micro" over "micro" -> tensor<f32>, tensor<f32> {
  // CHECK-NEXT: %x.slice = spmd.slice [{"micro"}] %x
  // CHECK-NEXT: %a_1 = aten.sum %x.slice
  // CHECK-NEXT: %e.slice = spmd.slice [{"micro"}] %e
  // CHECK-NEXT: %c = aten.mul.Tensor %x.slice, %e.slice
  // CHECK-NEXT: spmd.free %x.slice, %e.slice
  // CHECK-NEXT: %d_1 = aten.sum %c
  // CHECK-NEXT: spmd.free %c
  // CHECK-NEXT: pipe.yield %a_1, %d_1
  // CHECK-NEXT: }
  // CHECK-NEXT: spmd.free %e
  // CHECK-NEXT: %a.all_reduce = spmd.all_reduce [{"micro"}] %a
  // CHECK-NEXT: spmd.free %a
  // CHECK-NEXT: %b = aten.neg %a.all_reduce
  // CHECK: %d.all_reduce = spmd.all_reduce [{"micro"}] %d
  // CHECK: func.return %b, %d.all_reduce
  %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
  %a = aten.sum %x.slice {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
    : (tensor<8xf32>) -> tensor<f32>
  %a.all_reduce = spmd.all_reduce [{"micro"}] %a out_sharding = <@mesh, []> : tensor<f32>
  %b = aten.neg %a.all_reduce {spmd.signature = #spmd.sig<@mesh, ([]) -> ([])>} : (tensor<f32>) -> tensor<f32>
  %e = aten.exp %w {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<8xf32>) -> tensor<8xf32>
  %e.slice = spmd.slice [{"micro"}] %e out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
  %c = aten.mul.Tensor %x.slice, %e.slice {spmd.signature = #spmd.sig<@mesh,
    ([{"micro"}], [{"micro"}]) -> ([{"micro"}])>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %d = aten.sum %c {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
    : (tensor<8xf32>) -> tensor<f32>
  %d.all_reduce = spmd.all_reduce [{"micro"}] %d out_sharding = <@mesh, []> : tensor<f32>
  func.return %b, %d.all_reduce : tensor<f32>, tensor<f32>
}
