// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=split-batch --mlir-print-debuginfo=false | filecheck %s

// Each part of the batch adds into its own zeros, whose sum over the parts is zero.

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
func.func @step(%i: tensor<8xi64> {train.batch = "0"}, %g: tensor<8x4xf32> {train.batch = "1"}) -> tensor<16x4xf32> {
  // CHECK: aten.zeros {{.*}}() -> ([{}, {}], unreduced={"micro"})>
  %z = aten.zeros {size = [16 : i64, 4 : i64], dtype = f32, spmd.signature = #spmd.sig<@mesh, () -> ([{}, {}])>}
    : () -> tensor<16x4xf32>
  // CHECK: aten.index_put {{.*}}([{}, {}], unreduced={"micro"}, [{"micro"}], [{"micro"}, {}]) -> ([{}, {}], unreduced={"micro"})>
  %s = aten.index_put %z, %i, %g {accumulate = true, spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}], [{}, {}]) -> ([{}, {}])>}
    : (tensor<16x4xf32>, tensor<8xi64>, tensor<8x4xf32>) -> tensor<16x4xf32>
  func.return %s : tensor<16x4xf32>
}

// -----

spmd.mesh @mesh = <["gpu"=2]>

func.func @weights(%i: tensor<8xi64> {train.batch = "0"}, %g: tensor<8x4xf32> {train.batch = "1"}, %w: tensor<16x4xf32>) -> tensor<16x4xf32> {
  // expected-error@+1 {{'aten.index_put' op %s from "count" (model.py:3:4): it must add to %w [16, 4] once, after all 2 parts of the batch along "micro"; do not split the batch, or let the model add to zeros, and add the result to %w}}
  %s = aten.index_put %w, %i, %g {accumulate = true, spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}], [{}, {}]) -> ([{}, {}])>}
    : (tensor<16x4xf32>, tensor<8xi64>, tensor<8x4xf32>) -> tensor<16x4xf32> loc("count"("model.py":3:4))
  func.return %s : tensor<16x4xf32>
}
