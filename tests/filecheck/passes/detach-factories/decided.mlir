// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=detach-factories

// An op with a signature is not changed, since the signature is for its operands.
spmd.mesh @mesh = <["gpu"=2]>
func.func @step(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@+1 {{has a signature already; run detach-factories before search-strategy}}
  %z = aten.zeros_like %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %z : tensor<8x4xf32>
}
