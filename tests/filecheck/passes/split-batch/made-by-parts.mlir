// RUN: opt-tool %s --pass-pipeline=split-batch --mlir-print-debuginfo=false | filecheck %s

// A value that only parts use is computed part by part, even if it does not depend on the batch; so are working copies.

spmd.mesh @mesh = <["gpu"=2]>

func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<1x4xf32>) -> tensor<f32> {
  // CHECK: aten.expand %w {{.*}}([{}, {}]) -> ([{"micro"}, {}])>, spmd.working = [#spmd.sharding<@mesh, [{"micro", "gpu"}, {}]>]
  %e = aten.expand %w {size = [8 : i64, 4 : i64], spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>,
    spmd.working = [#spmd.sharding<@mesh, [{"gpu"}, {}]>]} : (tensor<1x4xf32>) -> tensor<8x4xf32>
  %h = aten.mul.Tensor %x, %e {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %s = aten.sum %h {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([], unreduced={"gpu"})>}
    : (tensor<8x4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
