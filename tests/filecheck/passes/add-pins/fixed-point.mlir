// RUN: opt-tool %s --pass-pipeline='add-pins{pins="%S/Inputs/rows.toml"},fixed-point{pipeline="search-strategy,balance-ratios"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='fixed-point{pipeline="search-strategy{pins=\"%S/Inputs/rows.toml\"},balance-ratios"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// Every search of the loop obeys the pin; a free search would split the columns of %w, which is faster (fixed-point/settles.mlir).

#fast = #spmd.device<"fast", flops = {float32 = 3.0e6}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e6}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
// CHECK: %w: tensor<8x16xf32> {train.param = "w", spmd.pin = #spmd.pin<([{"gpu"}, {}]), by [0]>, spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}], offsets={0: [0, 6, 8]}>
// CHECK-SAME: spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.75{{[0-9]*}}, 0.2{{[0-9]*}}]}>]
func.func @step(%x: tensor<16x8xf32> {train.batch = "0"}, %w: tensor<8x16xf32> {train.param = "w"}) -> tensor<16x16xf32> {
  %y = aten.mm %x, %w : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}
