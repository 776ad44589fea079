// RUN: opt-tool %s --pass-pipeline=insert-resharding,select-collectives --mlir-print-debuginfo=false | filecheck %s

// Steps over time are separate, precede steps over space, and are shared: slices of full values, and sums of parts.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK: -> (tensor<4xf32> {train.updates = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}, tensor<4xf32> {train.grad = "w", spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"gpu"}>})
func.func @step(
  %w: tensor<4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>},
  %x: tensor<8x4xf32> {train.batch = "0"}
) -> (tensor<4xf32> {train.updates = 0 : i64}, tensor<4xf32> {train.grad = "w"}) {
  // CHECK-NEXT: %x.slice = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]>
  // CHECK-NEXT: %x.slice_1 = spmd.slice [{"gpu"}, {}] %x.slice out_sharding = <@mesh, [{"micro", "gpu"}, {}]>
  // CHECK-NEXT: aten.neg %x.slice_1
  %a = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}]) -> ([{"micro", "gpu"}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: aten.exp %x.slice {
  %b = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: spmd.slice [{"gpu"}, {}] %b out_sharding = <@mesh, [{"micro", "gpu"}, {}]>
  // CHECK-NEXT: aten.mul.Tensor
  %c = aten.mul.Tensor %a, %b {spmd.signature = #spmd.sig<@mesh,
    ([{"micro", "gpu"}, {}], [{"micro", "gpu"}, {}]) -> ([{"micro", "gpu"}, {}])>
  } : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %g = aten.sum.dim_IntList
  %g = aten.sum.dim_IntList %c {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}]) -> ([{}], unreduced={"micro", "gpu"})>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %g.all_reduce = spmd.all_reduce [{"micro"}] %g out_sharding = <@mesh, [{}], unreduced={"gpu"}>
  // CHECK-NEXT: %g.reduce_scatter = spmd.reduce_scatter [{"gpu"}] %g.all_reduce out_sharding = <@mesh, [{"gpu"}]>
  %n = aten.add.Tensor %w, %g {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], [{"gpu"}]) -> ([{"gpu"}])>}
    : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: func.return %n, %g.all_reduce
  func.return %n, %g : tensor<4xf32>, tensor<4xf32>
}
