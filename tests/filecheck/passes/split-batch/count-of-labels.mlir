// RUN: opt-tool %s --pass-pipeline=split-batch --mlir-print-debuginfo=false | filecheck %s

// Every part needs the count of labels, which depends on the batch alone: it is computed once, before the parts.

spmd.mesh @mesh = <["gpu"=2]>

func.func @step(
  %x: tensor<8xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>},
  %y: tensor<8xi64> {train.batch = "1", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}
) -> tensor<f32> {
  // CHECK: aten.ne.Scalar %y {{.*}}([{"gpu"}]) -> ([{"gpu"}])>
  %valid = aten.ne.Scalar %y {other = -100 : i64, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>}
    : (tensor<8xi64>) -> tensor<8xi1>
  // CHECK: aten.sum %valid {{.*}}([{"gpu"}]) -> ([], unreduced={"gpu"})>
  %counted = aten.sum %valid {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>}
    : (tensor<8xi1>) -> tensor<i64>
  %count = aten._to_copy %counted {dtype = f32, spmd.signature = #spmd.sig<@mesh, ([]) -> ([])>}
    : (tensor<i64>) -> tensor<f32>
  // CHECK: aten.div.Tensor %x, %count {{.*}}([{"micro", "gpu"}], []) -> ([{"micro", "gpu"}])>
  %mean = aten.div.Tensor %x, %count {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], []) -> ([{"gpu"}])>}
    : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  // CHECK: aten.sum %mean {{.*}}([{"micro", "gpu"}]) -> ([], unreduced={"micro", "gpu"})>
  %loss = aten.sum %mean {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>}
    : (tensor<8xf32>) -> tensor<f32>
  func.return %loss : tensor<f32>
}
