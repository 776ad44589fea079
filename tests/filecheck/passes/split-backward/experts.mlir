// RUN: opt-tool %s --pass-pipeline=split-backward | filecheck %s

// Products of experts: the gradient of rows, for the previous stage, does not wait for the gradient of matrices.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
#rows = #spmd.sharding<@stage1, [{"gpu"}, {}]>
#matrices = #spmd.sharding<@stage1, [{}, {}, {}]>
#ends = #spmd.sharding<@stage1, [{}]>
spmd.mesh @mesh = <["gpu"=3]>
spmd.cluster @three on @mesh devices [#cpu] placement [0, 0, 0] links [#link]
spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.mesh @stage1 = <["gpu"=2]> on [1, 2]
spmd.cluster @three.stage0 on @stage0 devices [#cpu] placement [0] links [#link]
spmd.cluster @three.stage1 on @stage1 devices [#cpu] placement [0, 0] links [#link]
func.func @step(%x: tensor<64x16xf32> {pipe.stage = 1 : i64, spmd.sharding = #rows},
    %w: tensor<4x16x32xf32> {pipe.stage = 1 : i64, spmd.sharding = #matrices},
    %ends: tensor<4xi64> {pipe.stage = 1 : i64, spmd.sharding = #ends},
    %g: tensor<64x32xf32> {pipe.stage = 1 : i64, spmd.sharding = #rows})
    -> (tensor<64x16xf32>, tensor<4x16x32xf32>) attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: %dx, %dx.none = aten.grouped_mm_backward %x, %w, %ends, %g
  // CHECK-SAME: -> ([{"gpu"}, {}], [], unreduced={"gpu"})>, output_mask = [true, false]
  // CHECK: %dx.none_1, %dw = aten.grouped_mm_backward %x, %w, %ends, %g
  // CHECK-SAME: [{}, {}, {}], unreduced={"gpu"})>, output_mask = [false, true]
  // CHECK: pipe.transfer "dx.at0" %dx
  %dx, %dw = aten.grouped_mm_backward %x, %w, %ends, %g {train.backward, pipe.stage = 1 : i64,
    spmd.signature = #spmd.sig<@stage1, ([{"gpu"}, {}], [{}, {}, {}], [{}], [{"gpu"}, {}])
      -> ([{"gpu"}, {}], [{}, {}, {}], unreduced={"gpu"})>}
    : (tensor<64x16xf32>, tensor<4x16x32xf32>, tensor<4xi64>, tensor<64x32xf32>)
    -> (tensor<64x16xf32>, tensor<4x16x32xf32>)
  %dx.at0 = pipe.transfer "dx.at0" %dx to @stage0 out_sharding = <@stage0, [{}, {}]> : tensor<64x16xf32>
  func.return %dx.at0, %dw : tensor<64x16xf32>, tensor<4x16x32xf32>
}
