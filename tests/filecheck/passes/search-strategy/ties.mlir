// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=exhaustive explain=true}' --mlir-print-debuginfo=false \
// RUN:   | filecheck %s --check-prefix=TIED
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=exhaustive without=ties explain=true}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s --check-prefix=FREE
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=coordinate-descent without="ties,reduction" explain=true}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s --check-prefix=FREE

// Two equal layers get the same signature, so that a collective is between them. Without ties the first splits its
// columns and the second its rows, which need none. As a tied optimum is not a bound for other strategies, its bound is
// the one known without a search.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// TIED: cost = 2.667290e-04 : f64, lower_bound = 2.652160e-04
// TIED-SAME: tied = 2 : i64, visited = 30 : i64
// FREE: cost = 2.652160e-04 : f64, lower_bound = 2.652160e-04
// FREE-SAME: tied = 0 : i64
func.func @step(
  %x: tensor<1x256xf32> {train.batch = "x"},
  %w0: tensor<256x256xf32> {train.param = "h.0.weight"}, %w1: tensor<256x256xf32> {train.param = "h.1.weight"}
) -> tensor<1x256xf32> {
  // TIED: %y = aten.mm {{.*}}([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  // FREE: %y = aten.mm {{.*}}([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  %y = aten.mm %x, %w0 : (tensor<1x256xf32>, tensor<256x256xf32>) -> tensor<1x256xf32> loc("h.0")
  // TIED: %z = aten.mm {{.*}}([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  // FREE: %z = aten.mm {{.*}}([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>
  %z = aten.mm %y, %w1 : (tensor<1x256xf32>, tensor<256x256xf32>) -> tensor<1x256xf32> loc("h.1")
  func.return %z : tensor<1x256xf32>
}
