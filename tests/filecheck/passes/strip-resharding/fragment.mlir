// RUN: opt-tool %s --pass-pipeline=strip-resharding --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A loop over parts of the batch becomes the whole batch: its ops replace the fragment, and the temporal axis is
// removed, with the decisions on it.

// CHECK: spmd.mesh @mesh = <["gpu"=2]>
spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
// CHECK: func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>},
    %w: tensor<4xf32>) -> (tensor<f32> {spmd.sharding = #spmd.sharding<@mesh, []>}) {
  // CHECK-NEXT: %c = aten.mul.Tensor %x, %w : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %d = aten.sum %c : (tensor<8x4xf32>) -> tensor<f32>
  // CHECK-NEXT: func.return %d : tensor<f32>
  %s = pipe.fragment "micro" over "micro" -> tensor<f32> {
    %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {"gpu"}]> : tensor<8x4xf32>
    %v = spmd.slice [{"gpu"}] %w out_sharding = <@mesh, [{"gpu"}]> : tensor<4xf32>
    %c = aten.mul.Tensor %p, %v {
      spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {"gpu"}], [{"gpu"}]) -> ([{"micro"}, {"gpu"}])>
    } : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
    spmd.free %p : tensor<8x4xf32>
    %d = aten.sum %c {
      spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {"gpu"}]) -> ([], unreduced={"micro", "gpu"})>
    } : (tensor<8x4xf32>) -> tensor<f32>
    pipe.yield %d : tensor<f32>
  }
  %t = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, [], unreduced={"gpu"}> method = "flat" : tensor<f32>
  %u = spmd.all_reduce [{"gpu"}] %t out_sharding = <@mesh, []> method = "flat" : tensor<f32>
  func.return %u : tensor<f32>
}
