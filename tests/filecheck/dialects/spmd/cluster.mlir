// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

// Two kinds of devices, and links, one of them with measurements per collective.
// CHECK: spmd.cluster @mixed on @mesh devices
// CHECK-SAME: #spmd.device<"fast", flops = {float32 = 20000000000000.0, bfloat16 = 312000000000000.0}, bandwidth = 1500000000000.0, memory = 40000000000.0, launch = 5.0e-06>
// CHECK-SAME: #spmd.device<"slow", flops = {float32 = 1000000000.0}, bandwidth = 1000000000.0, memory = 1000000000.0, launch = 0.0>
// CHECK-SAME: placement [0, 0, 1, 1]
// CHECK-SAME: links [#spmd.link<"node", alpha = 2.0e-05, beta = 8.0e-11>, #spmd.link<"gpu", alpha = 5.0e-06, beta = 3.0e-12, all_reduce = (9.0e-06, 4.0e-12)>]
#fast = #spmd.device<"fast", flops = {float32 = 2.0e13, bfloat16 = 3.12e14}, bandwidth = 1.5e12, memory = 4.0e10, launch = 5.0e-6>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
spmd.cluster @mixed on @mesh devices [#fast, #slow] placement [0, 0, 1, 1] links [
  #spmd.link<"node", alpha = 2.0e-5, beta = 8.0e-11>,
  #spmd.link<"gpu", alpha = 5.0e-6, beta = 3.0e-12, all_reduce = (9.0e-6, 4.0e-12)>
]
