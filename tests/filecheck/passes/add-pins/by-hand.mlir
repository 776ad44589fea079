// RUN: opt-tool %s --pass-pipeline=search-strategy --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='add-pins{pins=dp},search-strategy{algorithm=fixed}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='search-plan{bound_rounds=0}' --mlir-print-debuginfo=false | filecheck %s

// A pin written into the IR is obeyed by every search, overrides added pins, and stays.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
// CHECK: %v: tensor<16x16xf32> {train.param = "v", spmd.pin = #spmd.pin<([{"gpu"}, {}])>, spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>
func.func @step(
  %x: tensor<64x32xf32> {train.batch = "0"},
  %w: tensor<32x16xf32> {train.param = "w"},
  %v: tensor<16x16xf32> {train.param = "v", spmd.pin = #spmd.pin<([{"gpu"}, {}])>}
) -> tensor<64x16xf32> {
  // CHECK: aten.mm {{.*}}spmd.pin = #spmd.op_pin<signature ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  // CHECK-SAME: spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  %y = aten.mm %x, %w {spmd.pin = #spmd.op_pin<signature ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>}
    : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  // CHECK: aten.mm {{.*}}spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>
  %z = aten.mm %y, %v {spmd.pin = #spmd.op_pin<"gpu" = (S(1), S(0)) -> (P)>}
    : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  func.return %z : tensor<64x16xf32>
}
