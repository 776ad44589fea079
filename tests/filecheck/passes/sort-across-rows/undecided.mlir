// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=sort-across-rows

// Without signatures, the split of the rows is unknown.
spmd.mesh @mesh = <["gpu"=2]>
func.func @step(%x: tensor<8x6xf32> {train.batch = "0"}) -> tensor<8x6xf32> {
  // expected-error@+1 {{has no signature; run search-strategy before sort-across-rows}}
  %y, %places = aten.sort %x {dim = 1 : i64, train.by_row} : (tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xi64>)
  func.return %y : tensor<8x6xf32>
}
