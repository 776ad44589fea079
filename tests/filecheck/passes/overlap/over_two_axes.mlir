// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' | filecheck %s

// A reduction over a second axis starts there after the next bucket has started over the first axis.

#sum = #spmd.sig<@mesh, ([{"dp"}, {"tp"}, {}]) -> ([{}], unreduced={"dp", "tp"})>
#pass = #spmd.sig<@mesh, ([{}], unreduced={"dp", "tp"}) -> ([{}], unreduced={"dp", "tp"})>

spmd.mesh @mesh = <["dp"=2, "tp"=2]>

// CHECK-LABEL: func.func @results
// CHECK:         %a = aten.sum.dim_IntList
// CHECK-NEXT:    %a.tp.started = spmd.start "reduce_scatter" %a
// CHECK-NEXT:    %b = aten.neg %a
// CHECK-NEXT:    %b.tp.started = spmd.start "reduce_scatter" %b
// CHECK-NEXT:    %a.tp = spmd.wait
// CHECK-NEXT:    %a.dp.started = spmd.start "all_reduce" %a.tp
// CHECK-NEXT:    %c = aten.neg %b
// CHECK-NEXT:    %b.tp = spmd.wait
// CHECK-NEXT:    %b.dp.started = spmd.start "all_reduce" %b.tp
// CHECK-NEXT:    %a.dp = spmd.wait
// CHECK-NEXT:    %b.dp = spmd.wait
// CHECK-NEXT:    func.return
func.func @results(%x: tensor<4x4x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}, {}]>}) -> (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) {
  %a = aten.sum.dim_IntList %x {dim = [0 : i64, 1 : i64], spmd.signature = #sum} : (tensor<4x4x16xf32>) -> tensor<16xf32>
  %b = aten.neg %a {spmd.signature = #pass} : (tensor<16xf32>) -> tensor<16xf32>
  %c = aten.neg %b {spmd.signature = #pass} : (tensor<16xf32>) -> tensor<16xf32>
  %a.tp = spmd.reduce_scatter [{"tp"}] %a out_sharding = <@mesh, [{"tp"}], unreduced={"dp"}> : tensor<16xf32>
  %a.dp = spmd.all_reduce [{"dp"}] %a.tp out_sharding = <@mesh, [{"tp"}]> : tensor<16xf32>
  %b.tp = spmd.reduce_scatter [{"tp"}] %b out_sharding = <@mesh, [{"tp"}], unreduced={"dp"}> : tensor<16xf32>
  %b.dp = spmd.all_reduce [{"dp"}] %b.tp out_sharding = <@mesh, [{"tp"}]> : tensor<16xf32>
  func.return %a.dp, %b.dp, %c : tensor<16xf32>, tensor<16xf32>, tensor<16xf32>
}
