// RUN: opt-tool %s --pass-pipeline=split-batch,insert-resharding,select-collectives,duplex --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A dropout is computed part by part, noise without a batch dim once; both have the numbers of the whole batch.

spmd.mesh @mesh = <["gpu"=2]>
#d = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.cluster @two on @mesh devices [#d] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %seed: tensor<i64> {train.seed}) -> tensor<f32> {
  // CHECK: %u = aten.random_uniform %seed {{.*}}([]) -> ([{}])>
  %u = aten.random_uniform %seed {low = 0.0 : f64, high = 1.0 : f64, stream = 1 : i64, dtype = f32, size = [4],
    absent = ["like"], spmd.signature = #spmd.sig<@mesh, ([]) -> ([{}])>} : (tensor<i64>) -> tensor<4xf32>
  %n = aten.mul.Tensor %x, %u {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // CHECK: %y.a, %y.kept.a = aten.random_dropout %n.a, %seed {{.*}}([{"micro", "gpu"}, {}], []) -> ([{"micro", "gpu"}, {}], [{"micro", "gpu"}, {}])>, spmd.at = {micro = 0 : i64}
  // CHECK: %y.b, %y.kept.b = aten.random_dropout %n.b, %seed {{.*}} spmd.at = {micro = 1 : i64}
  %y, %y.kept = aten.random_dropout %n, %seed {p = 0.3 : f64, stream = 0 : i64, spmd.signature = #spmd.sig<@mesh,
    ([{"gpu"}, {}], []) -> ([{"gpu"}, {}], [{"gpu"}, {}])>} : (tensor<8x4xf32>, tensor<i64>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
  %s = aten.sum %y {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([], unreduced={"gpu"})>}
    : (tensor<8x4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
