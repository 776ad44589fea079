// RUN: opt-tool %s --pass-pipeline=split-batch{unrolled=true} --mlir-print-debuginfo=false | filecheck %s

// On an axis that will be unrolled, ops inside the loop may need a sum over the batch.

spmd.mesh @mesh = <["gpu"=1]>
func.func @sum(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // CHECK: aten.sum.dim_IntList %h {{.*}} -> ([{}], unreduced={"micro"})>
  %m = aten.sum.dim_IntList %h {dim = [0 : i64], spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}])>}
    : (tensor<8x4xf32>) -> tensor<4xf32>
  // CHECK: aten.sub.Tensor %h, %m {{.*}}([{"micro"}, {}], [{}]) -> ([{"micro"}, {}])>
  %c = aten.sub.Tensor %h, %m {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %s = aten.sum %c {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
