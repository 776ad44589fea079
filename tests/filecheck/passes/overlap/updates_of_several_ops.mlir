// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' --mlir-print-debuginfo=false | filecheck %s

// The ops of one parameter's update stay together, though some need no gradient; the ops of %b wait for a sum of squares
// of its update over all ranks, and the update of %a runs meanwhile.

#grad = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
#one = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>
#two = #spmd.sig<@mesh, ([{"gpu"}], [{"gpu"}]) -> ([{"gpu"}])>
#scaled = #spmd.sig<@mesh, ([{"gpu"}], []) -> ([{"gpu"}])>
#sum = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>
#part = #spmd.sharding<@mesh, [{"gpu"}]>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK:         %b.sum = spmd.wait
// CHECK:         %b.total = aten.sum %b.squares
// CHECK-NEXT:    %[[STARTED:.*]] = spmd.start "all_reduce" %b.total
// CHECK:         %a.sum = spmd.wait
// CHECK-NEXT:    %a.next = aten.add.Tensor %a.decayed, %a.sum
// CHECK-NEXT:    %a.new = train.assign
// CHECK-NEXT:    %b.norm = spmd.wait %[[STARTED]]
// CHECK:         %b.new = train.assign
func.func @step(
  %a: tensor<16xf32> {train.param = "a", spmd.sharding = #part},
  %b: tensor<16xf32> {train.param = "b", spmd.sharding = #part},
  %x: tensor<4x16xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}
) -> (tensor<16xf32> {train.updates = 0 : i64, spmd.sharding = #part},
      tensor<16xf32> {train.updates = 1 : i64, spmd.sharding = #part}) {
  %gb = aten.sum.dim_IntList %x {dim = [0 : i64], spmd.signature = #grad} : (tensor<4x16xf32>) -> tensor<16xf32>
  %ga = aten.sum.dim_IntList %x {dim = [0 : i64], spmd.signature = #grad} : (tensor<4x16xf32>) -> tensor<16xf32>
  %a.decayed = aten.mul.Tensor %a {other = 0.9 : f64, train.update = "a", spmd.signature = #one}
    : (tensor<16xf32>) -> tensor<16xf32>
  %a.sum = spmd.reduce_scatter [{"gpu"}] %ga out_sharding = <@mesh, [{"gpu"}]> : tensor<16xf32>
  %a.next = aten.add.Tensor %a.decayed, %a.sum {train.update = "a", spmd.signature = #two}
    : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  %a.new = train.assign %a, %a.next {train.update = "a", spmd.signature = #two}
    : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  %b.sum = spmd.reduce_scatter [{"gpu"}] %gb out_sharding = <@mesh, [{"gpu"}]> : tensor<16xf32>
  %b.squares = aten.mul.Tensor %b.sum, %b.sum {train.update = "b", spmd.signature = #two}
    : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  %b.total = aten.sum %b.squares {train.update = "b", spmd.signature = #sum} : (tensor<16xf32>) -> tensor<f32>
  %b.norm = spmd.all_reduce [{"gpu"}] %b.total out_sharding = <@mesh, []> : tensor<f32>
  %b.next = aten.mul.Tensor %b.sum, %b.norm {train.update = "b", spmd.signature = #scaled}
    : (tensor<16xf32>, tensor<f32>) -> tensor<16xf32>
  %b.new = train.assign %b, %b.next {train.update = "b", spmd.signature = #two}
    : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  func.return %a.new, %b.new : tensor<16xf32>, tensor<16xf32>
}
