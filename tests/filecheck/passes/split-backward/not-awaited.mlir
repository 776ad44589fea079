// RUN: opt-tool %s --pass-pipeline='split-backward{slowdown=9.0}' | filecheck %s

// No other stage waits for the gradient of the input, so the op is not split.

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
  %dx, %dw, %db = aten.native_layer_norm_backward %g, %x, %mean, %rstd, %w, %b
    {normalized_shape = [16], output_mask = [true, true, true], train.backward, pipe.stage = 1 : i64,
     spmd.signature = #spmd.sig<@stage1, ([{}, {}], [{}, {}], [{}, {}], [{}, {}], [{}], [{}]) -> ([{}, {}], [{}], [{}])>}
    : (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<16xf32>, tensor<16xf32>)
    -> (tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>)
  func.return %dx, %dw, %db : tensor<8x16xf32>, tensor<16xf32>, tensor<16xf32>
}
