// RUN: opt-tool %s --pass-pipeline=duplex,strip-resharding --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// One of the two copies of an op by duplex stays, with its old name, for the whole batch.

// CHECK: spmd.mesh @mesh = <["gpu"=2]>
spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>

// CHECK: func.func @step
func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<f32> {
  // CHECK-NEXT: %s = aten.sum.dim_IntList %x {dim = [0 : i64]}
  // CHECK-NEXT: %e = aten.exp %s : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %c = aten.sub.Tensor %x, %e : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %d = aten.sum %c : (tensor<8x4xf32>) -> tensor<f32>
  // CHECK-NEXT: func.return %d : tensor<f32>
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
  func.return %d.sum : tensor<f32>
}
