// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=make-batch-major

spmd.mesh @mesh = <["gpu"=1]>
func.func @decided(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<8x4xf32> {
  // expected-error@+1 {{has a signature already; run make-batch-major before search-strategy}}
  %h = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %h : tensor<8x4xf32>
}
