// RUN: opt-tool %s --pass-pipeline='search-plan{algorithm=anneal iterations=10 bound_rounds=0}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=anneal budget=10}' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='search-plan{algorithm=anneal mesh="2x1"}' 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not opt-tool %s --pass-pipeline='search-strategy{algorithm=auto memory=100}' 2>&1 | filecheck %s --check-prefix=MEMORY

// AMP's walk finds data parallelism on both devices.
// CHECK: func.func @step
// CHECK-SAME: chosen = "dp on 2x1"
// CHECK: aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"outer"}, {}]) -> ([{"outer"}, {}])>}

// MESH: algorithm=anneal decides on the mesh itself; leave out mesh and pins, or take algorithm=auto
// MEMORY: algorithm=auto decides on whole plans; leave out memory

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
func.func @step(%x: tensor<64x32xf32> {train.batch = "0"}) -> tensor<64x32xf32> {
  %y = aten.relu %x : (tensor<64x32xf32>) -> tensor<64x32xf32>
  func.return %y : tensor<64x32xf32>
}
