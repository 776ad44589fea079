// RUN: opt-tool %s --pass-pipeline=select-collectives --split-input-file | filecheck %s --check-prefixes=ALL,AUTO
// RUN: opt-tool %s --pass-pipeline='select-collectives{method=padded}' --split-input-file | filecheck %s --check-prefixes=ALL,FLAT
// RUN: opt-tool %s --pass-pipeline='select-collectives{method=hierarchical}' --split-input-file | filecheck %s --check-prefixes=ALL,ASKED

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["node"=4, "gpu"=2]>
spmd.cluster @hosts on @mesh devices [#cpu] placement [0, 0, 0, 0, 0, 0, 0, 0] links []
  topology <levels = [<"nvlink", latency = 1.0e-6, bandwidth = 1.0e11>, <"nic", latency = 1.0e-4, bandwidth = 1.0e9, start = 1.0e-3>],
            hosts = [4 x <2, inside = "nvlink", nic = "nic", nics = 1>]>

// Both axes: one ring over all sends as much through the NICs as a hierarchy does, which takes what it does inside on
// top. It has fewer bytes to send across, though, where all ranks of a host share the NIC: three fourths of the value
// twice, not seven eighths.
// ALL-LABEL: @both
func.func @both(%x: tensor<1048576xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"node", "gpu"}>}) -> tensor<1048576xf32> {
  // AUTO: method = "hierarchical"
  // FLAT: method = "flat"
  // ASKED: method = "hierarchical"
  %y = spmd.reshard %x to <@mesh, [{}]> : tensor<1048576xf32>
  func.return %y : tensor<1048576xf32>
}

// One axis has no levels.
// ALL-LABEL: @one
func.func @one(%x: tensor<1048576xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"node"}>}) -> tensor<1048576xf32> {
  // ALL: method = "flat"
  %y = spmd.reshard %x to <@mesh, [{}]> : tensor<1048576xf32>
  func.return %y : tensor<1048576xf32>
}

// -----

// If the cluster does not describe the inside of a host, hierarchical is used only on request.
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["node"=4, "gpu"=2]>
spmd.cluster @links on @mesh devices [#cpu] placement [0, 0, 0, 0, 0, 0, 0, 0] links [
  #spmd.link<"node", alpha = 1.0e-3, beta = 1.0e-9>, #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-11>]
// ALL-LABEL: @unknown
func.func @unknown(%x: tensor<1048576xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"node", "gpu"}>}) -> tensor<1048576xf32> {
  // AUTO: method = "flat"
  // ASKED: method = "hierarchical"
  %y = spmd.reshard %x to <@mesh, [{}]> : tensor<1048576xf32>
  func.return %y : tensor<1048576xf32>
}
