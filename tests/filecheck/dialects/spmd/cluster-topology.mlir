// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

// Hosts and wires instead of a link per axis; measurements of an axis; the cost of overlapping computation and
// communication. A part of a cluster names the device of its first rank.
// CHECK: spmd.cluster @hosts on @mesh devices
// CHECK-SAME: placement [0, 0, 0, 0] links []
// CHECK-SAME: topology <levels = [<"pcie", latency = 5.0e-06, bandwidth = 12000000000.0, shared>, <"nic", latency = 2.0e-05, bandwidth = 1250000000.0, start = 1.0e-05, efficiency = {all_gather = 0.7, broadcast = 0.5}>],
// CHECK-SAME: hosts = [1 x <2, inside = "pcie", nic = "nic", nics = 1>, 2 x <1, nic = "nic", nics = 1>], switch = <2, 3.0>>
// CHECK-SAME: interference <compute = 1.1, communication = 1.25, delays = [(0.001, 0.0005), (0.01, 0.002)]>
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @hosts on @mesh devices [#cpu] placement [0, 0, 0, 0] links []
  topology <levels = [<"pcie", latency = 5.0e-6, bandwidth = 1.2e10, shared>,
                      <"nic", latency = 2.0e-5, bandwidth = 1.25e9, start = 1.0e-5,
                        efficiency = {all_gather = 0.7, broadcast = 0.5}>],
            hosts = [1 x <2, inside = "pcie", nic = "nic">, 2 x <1, nic = "nic">], switch = <2, 3.0>>
  interference <compute = 1.1, communication = 1.25, delays = [(1.0e-3, 5.0e-4), (0.01, 2.0e-3)]>

// CHECK: spmd.cluster @part on @stage devices
// CHECK-SAME: links [#spmd.link<"gpu", alpha = 0.0, beta = 0.0, all_reduce = (9.0e-06, 4.0e-12), points = {"all_gather" = [(1024.0, 1.0e-05), (2048.0, 1.5e-05)], "all_gather:grouped_broadcast" = [(1024.0, 2.0e-05)]}>]
// CHECK-SAME: hosts = [2 x <2, inside = "wire", nic = "wire", nics = 2>], devices = [2, 3]>
spmd.mesh @stage = <["gpu"=2]>
spmd.cluster @part on @stage devices [#cpu] placement [0, 0] links [
    #spmd.link<"gpu", alpha = 0.0, beta = 0.0, all_reduce = (9.0e-6, 4.0e-12), points = {
      "all_gather" = [(1024.0, 1.0e-5), (2048.0, 1.5e-5)], "all_gather:grouped_broadcast" = [(1024.0, 2.0e-5)]}>]
  topology <levels = [<"wire", latency = 5.0e-6, bandwidth = 1.2e10>],
            hosts = [2 x <2, inside = "wire", nic = "wire", nics = 2>], devices = [2, 3]>
