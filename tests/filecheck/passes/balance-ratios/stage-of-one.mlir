// RUN: opt-tool %s --mlir-print-debuginfo=false -p 'partition-stages{stages=2 ranks="1,3"},search-strategy,balance-ratios{ratios="0.5,0.25,0.25"}' | filecheck %s

// A stage on one device has no shares: the shares belong to the other stage.
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#spmd.link<"gpu", alpha = 1.0e-9, beta = 1.0e-12>]
// CHECK: %v: tensor<64xf32> {train.param = "a", {{.*}}spmd.sharding = #spmd.sharding<@stage0, [{}]>}
// CHECK-SAME: %w: tensor<64xf32> {train.param = "b", {{.*}}spmd.sharding = #spmd.sharding<@stage1, [{"gpu"}], offsets={0: [0, 32, 48, 64]}>}
// CHECK-SAME: spmd.ratios = [#spmd.ratios<@stage1, {"gpu" = [0.5, 0.25, 0.25]}>]
func.func @step(%v: tensor<64xf32> {train.param = "a"}, %w: tensor<64xf32> {train.param = "b"}) -> tensor<64xf32> {
  %a = aten.exp %v : (tensor<64xf32>) -> tensor<64xf32> loc("fc1")
  %b = aten.mul.Tensor %a, %w : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32> loc("fc2")
  func.return %b : tensor<64xf32>
}
