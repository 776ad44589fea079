// RUN: opt-tool %s --pass-pipeline='mark-compiled,annotate-costs' | filecheck %s
// RUN: opt-tool %s --pass-pipeline='annotate-costs' | filecheck %s --check-prefix=ALONE

// With the mark, three ops in a row are one kernel, which reads 64 bytes and writes 64, in one launch of a second; the
// annotation of each op is its part of the kernel. Without the mark, each op is a separate kernel.

#op = #spmd.sig<@mesh, ([{}]) -> ([{}])>

spmd.mesh @mesh = <["gpu"=1]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 64.0, memory = 1.0e9, launch = 1.0>] placement [0] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0>]

// CHECK-LABEL: func.func @step
// CHECK-SAME:    attributes {train.compiled, cost.step = {seconds = 3.0
// CHECK-NEXT:    %a = aten.neg %x {{.*}}cost.seconds = 2.0{{.*}}cost.bytes = 6.400000e+01
// CHECK-NEXT:    %b = aten.relu %a {{.*}}cost.bytes = 0.0
// CHECK-NEXT:    %c = aten.neg %b {{.*}}cost.seconds = 1.0{{.*}}cost.bytes = 6.400000e+01

// ALONE-LABEL: func.func @step
// ALONE-SAME:    cost.step = {seconds = 9.0
// ALONE-COUNT-3: cost.seconds = 3.0{{.*}}cost.bytes = 1.280000e+02
func.func @step(%x: tensor<16xf32>) -> tensor<16xf32> {
  %a = aten.neg %x {spmd.signature = #op} : (tensor<16xf32>) -> tensor<16xf32>
  %b = aten.relu %a {spmd.signature = #op} : (tensor<16xf32>) -> tensor<16xf32>
  %c = aten.neg %b {spmd.signature = #op} : (tensor<16xf32>) -> tensor<16xf32>
  func.return %c : tensor<16xf32>
}
