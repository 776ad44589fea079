// RUN: opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/virtual.toml"},insert-resharding,select-collectives' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// HAP's virtual devices (section 3): a node is one device, in which the GPUs are data-parallel; between nodes everything
// is searched. Here the large weight is split over nodes by columns, and no gradient is sent between nodes.

#gpu = #spmd.device<"gpu", flops = {float32 = 1.0e12}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
#node = #spmd.link<"node", alpha = 1.0e-6, beta = 1.0e-9>
#inside = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-11>
spmd.mesh @mesh = <["node"=2, "gpu"=4]>
spmd.cluster @hosts on @mesh devices [#gpu] placement [0, 0, 0, 0, 0, 0, 0, 0] links [#node, #inside]

// CHECK-LABEL: func.func @step
// CHECK:      aten.mm %x, %w {{.*}}spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {"node"}]) -> ([{"gpu"}, {"node"}])>
// CHECK:      spmd.all_reduce [{"gpu"}] %dw
// CHECK-NOT:  spmd.all_
func.func @step(
  %w: tensor<512x512xf32> {train.param = "w"},
  %x: tensor<256x512xf32> {train.batch = "x"}, %t: tensor<256x512xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<512x512xf32> {train.updates = 0 : i64}) {
  %y = aten.mm %x, %w : (tensor<256x512xf32>, tensor<512x512xf32>) -> tensor<256x512xf32>
  %dz = aten.sub.Tensor %y, %t : (tensor<256x512xf32>, tensor<256x512xf32>) -> tensor<256x512xf32>
  %xt = aten.t %x {train.backward} : (tensor<256x512xf32>) -> tensor<512x256xf32>
  %dw = aten.mm %xt, %dz {train.backward} : (tensor<512x256xf32>, tensor<256x512xf32>) -> tensor<512x512xf32>
  %w.new = train.sgd %w, %dw, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<512x512xf32>, tensor<512x512xf32>, tensor<f32>, tensor<f32>) -> tensor<512x512xf32>
  func.return %w.new : tensor<512x512xf32>
}
