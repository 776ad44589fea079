// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=eliminate}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,ELIMINATE
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=exhaustive}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,EXHAUSTIVE

// Exhaustive search finds the cost of elimination, whose bound equals its cost: the 2 * 64^3 operations of
// each product, halved, at 1e9 a second, and one all-to-all: 1 microsecond, a quarter of 64^2 * 4 bytes at 1e9 a second,
// and the nanosecond that is added to every message.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// ELIMINATE: algorithm = "eliminate", cost = 0.00052938500000000006 : f64, lower_bound = 0.00052938500000000006 : f64
// EXHAUSTIVE: algorithm = "exhaustive", cost = 0.00052938500000000006 : f64, lower_bound = 0.00052938500000000006 : f64
func.func @step(%x: tensor<64x64xf32> {train.batch = "x"}, %y: tensor<64x64xf32> {train.batch = "y"}) -> tensor<64x64xf32> {
  // CHECK: %a = aten.mm %x, %y
  %a = aten.mm %x, %y : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  // CHECK: %b = aten.mm %a, %a
  %b = aten.mm %a, %a : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %b : tensor<64x64xf32>
}
