// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=eliminate}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,ELIMINATE
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=astar}' --mlir-print-debuginfo=false | filecheck %s --check-prefixes=CHECK,ASTAR
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=astar explain=true}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=EXPLAIN
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=astar explain=true without="fusion,bound"}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=PLAIN
// RUN: not opt-tool %s --pass-pipeline='search-strategy{algorithm=astar without=pruning}' 2>&1 | filecheck %s --check-prefix=UNKNOWN

// HAP's synthesis finds the optimum of elimination, and reports how many programs it took from the queue, generated,
// and dropped by each rule. Without an estimate of the cost to come and without fusion it takes more programs.

// UNKNOWN: algorithm=astar has no part 'pruning'; expected ascent, bound, dominance, fusion, once, order, redundant, states

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// ELIMINATE: algorithm = "eliminate", cost = 0.00052938500000000006 : f64, lower_bound = 0.00052938500000000006 : f64
// ASTAR: algorithm = "astar", cost = 0.00052938500000000006 : f64, lower_bound = 0.00052938500000000006 : f64
// EXPLAIN: cost = 0.00052938500000000006 : f64
// EXPLAIN-SAME: statistics = {dropped_by_score = 0 : i64, dropped_dominated = 26 : i64, dropped_states = 7 : i64, generated = 33 : i64, nodes = 5 : i64, states = 22 : i64, states_left = 15 : i64, taken = 3 : i64}
// PLAIN: cost = 0.00052938500000000006 : f64
// PLAIN-SAME: statistics = {dropped_by_score = 2 : i64, dropped_dominated = 24 : i64, {{.*}}generated = 39 : i64, {{.*}}taken = 13 : i64}
func.func @step(%x: tensor<64x64xf32> {train.batch = "x"}, %y: tensor<64x64xf32> {train.batch = "y"}) -> tensor<64x64xf32> {
  // CHECK: %a = aten.mm %x, %y
  %a = aten.mm %x, %y : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  // CHECK: %b = aten.mm %a, %a
  %b = aten.mm %a, %a : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %b : tensor<64x64xf32>
}
