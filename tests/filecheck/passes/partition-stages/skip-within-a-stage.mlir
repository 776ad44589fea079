// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2 chunks=2}' | filecheck %s
// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2}' | filecheck %s --check-prefix=ONE
// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2 chunks=2 begins="0,1,4"}' | filecheck %s --check-prefix=GIVEN
// RUN: not opt-tool %s --pass-pipeline='partition-stages{stages=2 chunks=2 begins="0,2"}' 2>&1 | filecheck %s --check-prefix=FEW

// Three chunks keep both ends of a skip connection on the first stage, where two of its chunks are at the ends.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// FEW: begins="0,2": expected 3 to 4 ascending numbers of layers, the first 0
func.func @step(%x: tensor<64x64xf32> {train.batch = "0"}, %v: tensor<64x64xf32> {train.param = "v"},
    %w: tensor<64x64xf32> {train.param = "w"}) -> tensor<64x64xf32> {
  // CHECK: %a = aten.mm %x, %v {pipe.stage = 0 : i64}
  // GIVEN: %a = aten.mm %x, %v {pipe.stage = 0 : i64}
  %a = aten.mm %x, %v : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc1")
  // CHECK: pipe.transfer "a.at1"
  // ONE-NOT: pipe.transfer "a.at1"
  // CHECK: %b = aten.mm %a.at1, %w {pipe.stage = 1 : i64}
  // ONE: pipe.transfer
  %b = aten.mm %a, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
  // CHECK: %c = aten.mm %b, %w {pipe.stage = 1 : i64}
  // CHECK: pipe.transfer "c.at0"
  // CHECK-NOT: pipe.transfer
  %c = aten.mm %b, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc3")
  // CHECK: %d = aten.mm %c.at0, %a {pipe.stage = 0 : i64}
  // GIVEN: %d = aten.mm %c, %a.at1 {pipe.stage = 1 : i64}
  %d = aten.mm %c, %a : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc4")
  // GIVEN: %e = aten.relu %d.at0 {pipe.stage = 0 : i64}
  %e = aten.relu %d : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc5")
  func.return %e : tensor<64x64xf32>
}
