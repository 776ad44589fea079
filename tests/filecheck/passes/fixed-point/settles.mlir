// RUN: opt-tool %s -p 'fixed-point{pipeline="search-strategy,balance-ratios" max=9}' --print-ir-after-all --mlir-print-debuginfo=false 2>/dev/null | filecheck %s
// RUN: opt-tool %s -p 'fixed-point{pipeline="search-strategy,balance-ratios" max=1}' --mlir-print-debuginfo=false | filecheck %s

// With even shares the strategy splits the columns of %w; the ratios fit that strategy, and then nothing changes.

#fast = #spmd.device<"fast", flops = {float32 = 3.0e6}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e6}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
// CHECK: spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.75{{[0-9]*}}, 0.2{{[0-9]*}}]}>]
func.func @step(%x: tensor<16x8xf32> {train.batch = "0"}, %w: tensor<8x16xf32> {train.param = "w"}) -> tensor<16x16xf32> {
  // CHECK: aten.mm
  // CHECK-SAME: [0, 12, 16]
  %y = aten.mm %x, %w : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}
