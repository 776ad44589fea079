// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0.3}' | filecheck %s --check-prefixes=CHECK,SMALL
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=64}' | filecheck %s --check-prefixes=CHECK,LARGE

// A single gather is hierarchical, which saves latency. In a bucket the gathers are large enough for one phase, which
// copies and sends less. A gather with an explicit method other than the cheapest keeps it.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e11, memory = 1.0e9, launch = 0.0>
#keep = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>
#whole = #spmd.sharding<@mesh, [{}]>
#part = #spmd.sharding<@mesh, [{"node", "gpu"}]>

spmd.mesh @mesh = <["node"=4, "gpu"=2]>
spmd.cluster @hosts on @mesh devices [#cpu] placement [0, 0, 0, 0, 0, 0, 0, 0] links []
  topology <levels = [<"nvlink", latency = 1.0e-6, bandwidth = 1.0e10>, <"nic", latency = 1.0e-4, bandwidth = 1.0e9>],
            hosts = [4 x <2, inside = "nvlink", nic = "nic", nics = 2>]>

// CHECK-LABEL: func.func @step
// SMALL: spmd.start "all_gather" %a {{.*}} method = "hierarchical"
// SMALL: spmd.start "all_gather" %b {{.*}} method = "hierarchical"
// LARGE: spmd.start "all_gather" %a, %b {{.*}} method = "flat"
// CHECK: spmd.start "all_gather" %c {{.*}} method = "grouped_broadcast"
func.func @step(%a: tensor<65536xf32> {spmd.sharding = #part}, %b: tensor<65536xf32> {spmd.sharding = #part}, %c: tensor<65536xf32> {spmd.sharding = #part}) -> tensor<65536xf32> {
  %a0 = spmd.all_gather [{"node", "gpu"}] %a out_sharding = <@mesh, [{}]> method = "hierarchical" : tensor<65536xf32>
  %b0 = spmd.all_gather [{"node", "gpu"}] %b out_sharding = <@mesh, [{}]> method = "hierarchical" : tensor<65536xf32>
  %c0 = spmd.all_gather [{"node", "gpu"}] %c out_sharding = <@mesh, [{}]> method = "grouped_broadcast" : tensor<65536xf32>
  %y = aten.add.Tensor %a0, %b0 {spmd.signature = #keep} : (tensor<65536xf32>, tensor<65536xf32>) -> tensor<65536xf32>
  %z = aten.add.Tensor %y, %c0 {spmd.signature = #keep} : (tensor<65536xf32>, tensor<65536xf32>) -> tensor<65536xf32>
  func.return %z : tensor<65536xf32>
}
