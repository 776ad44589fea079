// RUN: opt-tool %s --pass-pipeline=reuse-buffers --mlir-print-debuginfo=false | filecheck %s

// The sum of the parts starts in the memory of the first part's result, unless that is a view whose memory has
// other users.

spmd.mesh @mesh = <["t"=2 temporal, "gpu"=1]>
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}) -> (tensor<3xf32>, tensor<3xf32>, tensor<3x1xf32>) {
  // CHECK-NEXT: pipe.fragment "micro" over "t" {spmd.reuses = array<i64: 0, -1, -1>}
  %f:3 = pipe.fragment "micro" over "t" -> tensor<3xf32>, tensor<3xf32>, tensor<3x1xf32> {
    %part = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"t"}, {}]> : tensor<4x3xf32>
    %s = aten.sum.dim_IntList %part {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{}], unreduced={"t"})>} : (tensor<4x3xf32>) -> tensor<3xf32>
    %g = aten.neg %s {spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"t"}) -> ([{}], unreduced={"t"})>} : (tensor<3xf32>) -> tensor<3xf32>
    %v = aten.view %g {size = [3, 1], spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"t"}) -> ([{}, {}], unreduced={"t"})>} : (tensor<3xf32>) -> tensor<3x1xf32>
    pipe.yield %s, %g, %v : tensor<3xf32>, tensor<3xf32>, tensor<3x1xf32>
  }
  // CHECK: spmd.all_reduce [{"t"}] %f out_sharding = <@mesh, [{}]> {spmd.reuses = array<i64: 0>}
  %a = spmd.all_reduce [{"t"}] %f#0 out_sharding = <@mesh, [{}]> : tensor<3xf32>
  %b = spmd.all_reduce [{"t"}] %f#1 out_sharding = <@mesh, [{}]> : tensor<3xf32>
  %c = spmd.all_reduce [{"t"}] %f#2 out_sharding = <@mesh, [{}, {}]> : tensor<3x1xf32>
  func.return %a, %b, %c : tensor<3xf32>, tensor<3xf32>, tensor<3x1xf32>
}
