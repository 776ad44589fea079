// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=accumulate

// A loop that is not unrolled cannot wait for a sum of all of its parts.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=1]>
func.func @step(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<f32> {
  %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
  %a = aten.sum %x.slice {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
    : (tensor<8xf32>) -> tensor<f32>
  %a.all_reduce = spmd.all_reduce [{"micro"}] %a out_sharding = <@mesh, []> : tensor<f32>
  // expected-error@+1 {{'aten.sub.Tensor' op %c from "norm" (model.py:3:4): it needs %a.all_reduce, computed from all parts along "micro", for each of them; only an unrolled axis can wait for it there}}
  %c = aten.sub.Tensor %x.slice, %a.all_reduce {spmd.signature = #spmd.sig<@mesh,
    ([{"micro"}], []) -> ([{"micro"}])>} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32> loc("norm"("model.py":3:4))
  %d = aten.sum %c {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
    : (tensor<8xf32>) -> tensor<f32>
  %d.all_reduce = spmd.all_reduce [{"micro"}] %d out_sharding = <@mesh, []> : tensor<f32>
  func.return %d.all_reduce : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
// expected-error@+1 {{expected one temporal axis, or the name of one; the temporal axes of mesh <["gpu"=1]> are: none; run split-batch first}}
func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}
