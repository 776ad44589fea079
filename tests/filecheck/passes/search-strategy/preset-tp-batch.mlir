// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=fixed pins="%S/Inputs/tp.toml"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// Tensor parallelism never splits the batch instead of a matrix, though a gather of two small matrices, which are used
// transposed, would send less than a gather of the value between the products.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(
  %v: tensor<16x32xf32> {train.param = "up"},
  %w: tensor<32x16xf32> {train.param = "down"},
  %x: tensor<4096x32xf32> {train.batch = "0"}
) -> tensor<f32> {
  %vt = aten.t %v : (tensor<16x32xf32>) -> tensor<32x16xf32>
  // CHECK: aten.mm %x, %vt {{{.*}}spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>}
  %a = aten.mm %x, %vt : (tensor<4096x32xf32>, tensor<32x16xf32>) -> tensor<4096x16xf32>
  %wt = aten.t %w : (tensor<32x16xf32>) -> tensor<16x32xf32>
  // CHECK: aten.mm %a{{[a-z_.]*}}, %wt {{{.*}}spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>}
  %b = aten.mm %a, %wt : (tensor<4096x16xf32>, tensor<16x32xf32>) -> tensor<4096x32xf32>
  %c = aten.relu %b : (tensor<4096x32xf32>) -> tensor<4096x32xf32>
  %s = aten.sum %c : (tensor<4096x32xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
