// RUN: opt-tool %s -p 'balance-ratios{ratios="1.0,0.0"}' --mlir-print-debuginfo=false | filecheck %s

// The gradient of the bias does not depend on the input channels, so a device without any must compute it too.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
// CHECK: spmd.balance = {{.*}}whole = ["'aten.convolution_backward' op %gx, %gw, %gb: is replicated along factor i: every device needs a part of it, and some would get none"]
func.func @step(%g: tensor<2x4x6x6xf32>, %x: tensor<2x2x8x8xf32>, %w: tensor<4x2x3x3xf32>) -> tensor<4xf32> {
  // CHECK: aten.convolution_backward
  // CHECK-SAME: spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}, {}], [{}, {}, {}, {}], [{}, {}, {}, {}]) -> ([{}, {}, {}, {}], [{}, {}, {}, {}], [{}])>
  %gx, %gw, %gb = aten.convolution_backward %g, %x, %w {bias_sizes = [4 : i64], stride = [1 : i64, 1 : i64],
    padding = [0 : i64, 0 : i64], dilation = [1 : i64, 1 : i64], transposed = false, output_padding = [0 : i64, 0 : i64],
    groups = 1 : i64, output_mask = [true, true, true],
    spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}, {}], [{}, {"gpu"}, {}, {}], [{}, {"gpu"}, {}, {}])
      -> ([{}, {"gpu"}, {}, {}], [{}, {"gpu"}, {}, {}], [{}])>
  } : (tensor<2x4x6x6xf32>, tensor<2x2x8x8xf32>, tensor<4x2x3x3xf32>)
    -> (tensor<2x2x8x8xf32>, tensor<4x2x3x3xf32>, tensor<4xf32>)
  func.return %gb : tensor<4xf32>
}
