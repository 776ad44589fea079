// RUN: opt-tool %s --pass-pipeline=split-batch{parts=4} --mlir-print-debuginfo=false | filecheck %s

// Sums over the batch stay partial through linear ops; an update runs once, on full values; so do users of an
// updated or a summed value.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK: spmd.mesh @mesh = <["micro"=4 temporal, "gpu"=2]>

// CHECK: %x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}
func.func @step(
  %w: tensor<4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{}]>},
  %x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<4xf32> {train.updates = 0 : i64}) {
  // CHECK: aten.mul.Tensor %x, %w {{.*}}([{"micro", "gpu"}, {}], [{}]) -> ([{"micro", "gpu"}, {}])>
  %h = aten.mul.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // CHECK: aten.sum.dim_IntList %h {{.*}}([{"micro", "gpu"}, {}]) -> ([{}], unreduced={"micro", "gpu"})>
  %s = aten.sum.dim_IntList %h {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  // CHECK: aten.neg %s {{.*}}([{}], unreduced={"micro", "gpu"}) -> ([{}], unreduced={"micro", "gpu"})>
  %g = aten.neg %s {spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>}
    : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: aten.exp %g {{.*}}([{}]) -> ([{}])>
  %e = aten.exp %g {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: aten.add.Tensor %g, %e {{.*}}([{}], [{}]) -> ([{}])>
  %a = aten.add.Tensor %g, %e {spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>}
    : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: train.sgd %w, %a, %lr {{.*}}([{}], [{}], []) -> ([{}])>
  %new = train.sgd %w, %a, %lr {absent = ["momentum_buffer", "step"],
    spmd.signature = #spmd.sig<@mesh, ([{}], [{}], []) -> ([{}])>
  } : (tensor<4xf32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  func.return %new : tensor<4xf32>
}
