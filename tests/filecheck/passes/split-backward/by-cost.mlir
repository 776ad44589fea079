// RUN: opt-tool %s --pass-pipeline=split-backward | filecheck %s
// RUN: opt-tool %s --pass-pipeline='split-backward{slowdown=1.0}' | filecheck %s --check-prefix=APART

// A layer norm reads its operands once for all gradients: on this memory-bound device, two ops are slower. If the split
// may take up to twice as long, it is made, since the previous stage waits for the gradient of the input.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
#all = #spmd.sharding<@stage1, [{}, {}]>
#one = #spmd.sharding<@stage1, [{}]>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.mesh @stage1 = <["gpu"=1]> on [1]
spmd.cluster @two.stage0 on @stage0 devices [#cpu] placement [0] links [#link]
spmd.cluster @two.stage1 on @stage1 devices [#cpu] placement [0] links [#link]
func.func @step(%g: tensor<8x16xf32> {pipe.stage = 1 : i64, spmd.sharding = #all},
    %x: tensor<8x16xf32> {pipe.stage = 1 : i64, spmd.sharding = #all},
    %mean: tensor<8x1xf32> {pipe.stage = 1 : i64, spmd.sharding = #all},
    %rstd: tensor<8x1xf32> {pipe.stage = 1 : i64, spmd.sharding = #all},
    %w: tensor<16xf32> {pipe.stage = 1 : i64, spmd.sharding = #one},
    %b: tensor<16xf32> {pipe.stage = 1 : i64, spmd.sharding = #one})
    -> (tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>) attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: %dx, %dw, %db = aten.native_layer_norm_backward {{.*}}output_mask = [true, true, true]
  // APART: %dx, %dx.none, %dx.none_1 = aten.native_layer_norm_backward {{.*}}output_mask = [true, false, false]
  // APART: %dx.none_2, %dw, %db = aten.native_layer_norm_backward {{.*}}output_mask = [false, true, true]
  %dx, %dw, %db = aten.native_layer_norm_backward %g, %x, %mean, %rstd, %w, %b
    {normalized_shape = [16], output_mask = [true, true, true], train.backward, pipe.stage = 1 : i64,
     spmd.signature = #spmd.sig<@stage1, ([{}, {}], [{}, {}], [{}, {}], [{}, {}], [{}], [{}]) -> ([{}, {}], [{}], [{}])>}
    : (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<16xf32>, tensor<16xf32>)
    -> (tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>)
  %dx.at0 = pipe.transfer "dx.at0" %dx to @stage0 out_sharding = <@stage0, [{}, {}]> : tensor<8x16xf32>
  func.return %dx.at0, %dw, %db : tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>
}
