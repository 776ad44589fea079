// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

// The results of a profile: the fixed seconds of a step, rates of families of ops, and times of single ops.
// CHECK: #spmd.device<"cpu", flops = {float32 = 1000000000.0}, bandwidth = 1000000000.0, memory = 1000000000.0, launch = 0.0,
// CHECK-SAME: overhead = 0.001,
// CHECK-SAME: rates = [<"contractions", "float32", flops = 2000000000.0, bandwidth = 1000000000.0, launch = 5.0e-06, curve = [(1000000.0, 0.2), (1000000000.0, 1.1)]>, <"", "", flops = 1.0, bandwidth = 1.0, launch = 0.0, moving_curve = [(1000.0, 0.5)]>],
// CHECK-SAME: table = {"mm(float32[64x32], float32[32x16])" = 1.5e-05}>
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0, overhead = 1.0e-3,
  rates = [<"contractions", "float32", flops = 2.0e9, bandwidth = 1.0e9, launch = 5.0e-6, curve = [(1.0e6, 0.2), (1.0e9, 1.1)]>,
           <"", "", flops = 1.0, bandwidth = 1.0, launch = 0.0, moving_curve = [(1.0e3, 0.5)]>],
  table = {"mm(float32[64x32], float32[32x16])" = 1.5e-5}>
spmd.mesh @mesh = <["gpu"=1]>
spmd.cluster @c on @mesh devices [#cpu] placement [0] links [#spmd.link<"gpu", alpha = 0.0, beta = 1.0e-9>]
