// RUN: not opt-tool %s --pass-pipeline='search-strategy{algorithm=metropolis without=tie}' 2>&1 | filecheck %s --check-prefix=TIE
// RUN: not opt-tool %s --pass-pipeline='search-strategy{algorithm=exhaustive without="ties,reduction"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=OTHER
// RUN: not opt-tool %s --pass-pipeline='search-strategy{without=ties}' 2>&1 | filecheck %s --check-prefix=NONE

// A part that the algorithm does not have cannot be switched off; the error lists those that can.
// TIE: error: pass 'search-strategy' failed: algorithm=metropolis has no part 'tie'; expected reduction, ties
// OTHER: algorithm=exhaustive has no part 'reduction'; expected completion, ties
// NONE: algorithm=eliminate has no part 'ties'; leave `without` out

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(%x: tensor<64x64xf32> {train.batch = "x"}) -> tensor<64x64xf32> {
  %y = aten.relu %x : (tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
