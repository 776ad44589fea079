// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=pareto-dp explain=true}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,EXACT
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=pareto-dp explain=true without="bound,dominance"}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,ALL
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=pareto-dp explain=true budget=1}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,BEAM

// The statistics say how many cuts were visited, how many partial strategies were grown (expanded) and kept, and by which
// rule others were dropped. Without the rules more are kept for the same optimum. A budget of one step leaves a beam of one,
// which finds the optimum here, but cannot prove more than the seconds of computation split over both devices.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-7>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// CHECK: algorithm = "pareto-dp", cost = 6.727450e-04
// EXACT-SAME: lower_bound = 6.727450e-04
// EXACT-SAME: beam = 0 : i64, cuts = 10 : i64, dominated = 18 : i64
// EXACT-SAME: exact = 1 : i64, expanded = 16 : i64, kept = 17 : i64
// ALL-SAME: lower_bound = 6.727450e-04
// ALL-SAME: beam = 0 : i64, cuts = 10 : i64, dominated = 0 : i64, dominated_by_times = 0 : i64
// ALL-SAME: exact = 1 : i64, expanded = 125 : i64, kept = 1537 : i64
// ALL-SAME: pruned_by_bound = 0 : i64
// BEAM-SAME: lower_bound = 5.242880e-04
// BEAM-SAME: beam = 1 : i64, cuts = 8 : i64, dominated = 4 : i64
// BEAM-SAME: exact = 0 : i64, expanded = 8 : i64, kept = 8 : i64, left_by_beam = 103 : i64
func.func @step(%x: tensor<64x64xf32> {train.batch = "x"}, %y: tensor<64x64xf32> {train.batch = "y"}) -> tensor<64x64xf32> {
  %a = aten.mm %x, %y : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = aten.mm %a, %a : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %b : tensor<64x64xf32>
}
