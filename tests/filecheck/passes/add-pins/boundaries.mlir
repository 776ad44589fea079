// RUN: not opt-tool %s --pass-pipeline='add-pins{pins="%S/Inputs/uneven.toml"},search-strategy' 2>&1 | filecheck %s --check-prefix=EVEN
// RUN: not opt-tool %s --pass-pipeline='search-strategy,add-pins{pins="%S/Inputs/uneven.toml"},balance-ratios' 2>&1 \
// RUN:   | filecheck %s --check-prefix=SHARES

// Pinned boundaries must follow from the shares, and `balance-ratios` does not move them.

// EVEN: 'func.func' op @step: uneven.toml:1: pin 'batch.0' leaves no sharding for %x of shape [8, 4]
// SHARES: 'func.func' op @step: uneven.toml:1: pin 'batch.0': the shares divide %x as [{"gpu"}, {}], offsets={0: [0, 6, 8]}, but the pin requires [{"gpu"}, {}], offsets={0: [0, 2, 8]}; leave offsets out of the pin

#fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<8x4xf32> {
  %y = aten.relu %x : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
