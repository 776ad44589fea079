// RUN: opt-tool %s --pass-pipeline=select-collectives --split-input-file | filecheck %s --check-prefixes=ALL,AUTO
// RUN: opt-tool %s --pass-pipeline='select-collectives{method=hierarchical}' --split-input-file | filecheck %s --check-prefixes=ALL,ASKED

// Gathers and scatters over both axes of two hosts with eight devices each: the NIC carries half of the value instead of
// fifteen sixteenths. An all-to-all sends as many bytes in any case, and a second time inside.
#gpu = #spmd.device<"gpu", flops = {float32 = 1.0e13}, bandwidth = 1.0e12, memory = 1.0e10, launch = 0.0>
spmd.mesh @mesh = <["node"=2, "gpu"=8]>
spmd.cluster @hosts on @mesh devices [#gpu] placement [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] links []
  topology <levels = [<"nvlink", latency = 1.0e-6, bandwidth = 1.0e11>, <"nic", latency = 1.0e-4, bandwidth = 1.0e9>],
            hosts = [2 x <8, inside = "nvlink", nic = "nic", nics = 1>]>

// ALL-LABEL: @gather
func.func @gather(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}, {}]>}) -> tensor<1024x1024xf32> {
  // ALL: method = "hierarchical"
  %y = spmd.reshard %x to <@mesh, [{}, {}]> : tensor<1024x1024xf32>
  func.return %y : tensor<1024x1024xf32>
}

// Unequal parts are sent in phases too, padded or not.
// ALL-LABEL: @gather_unequal
func.func @gather_unequal(%x: tensor<1000x1023xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"node", "gpu"}]>}) -> tensor<1000x1023xf32> {
  // ALL: method = "hierarchical"
  %y = spmd.reshard %x to <@mesh, [{}, {}]> : tensor<1000x1023xf32>
  func.return %y : tensor<1000x1023xf32>
}

// ALL-LABEL: @scatter
func.func @scatter(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}], unreduced={"node", "gpu"}>}) -> (tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}, {}]>}) {
  // ALL: spmd.reduce_scatter
  // ALL-SAME: method = "hierarchical"
  %y = spmd.reshard %x to <@mesh, [{"node", "gpu"}, {}]> : tensor<1024x1024xf32>
  func.return %y : tensor<1024x1024xf32>
}

// ALL-LABEL: @to_all
func.func @to_all(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}, {}]>}) -> (tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"node", "gpu"}]>}) {
  // AUTO: method = "flat"
  // ASKED: method = "hierarchical"
  %y = spmd.reshard %x to <@mesh, [{}, {"node", "gpu"}]> : tensor<1024x1024xf32>
  func.return %y : tensor<1024x1024xf32>
}

// If boundaries move along one dim, only the sender and the receiver of a piece know its size.
// ALL-LABEL: @moves
func.func @moves(%x: tensor<32xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}], offsets={0: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 32]}>}) -> (tensor<32xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}]>}) {
  // ALL: spmd.all_to_all
  // ALL-SAME: method = "padded"
  %y = spmd.reshard %x to <@mesh, [{"node", "gpu"}]> : tensor<32xf32>
  func.return %y : tensor<32xf32>
}

// A gather inside hosts has no levels.
// ALL-LABEL: @inside
func.func @inside(%x: tensor<1024xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<1024xf32> {
  // ALL: method = "flat"
  %y = spmd.reshard %x to <@mesh, [{}]> : tensor<1024xf32>
  func.return %y : tensor<1024xf32>
}
