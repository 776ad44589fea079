// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=insert-resharding

// The sum must be on the same side of a linear op for both operands of a comparison.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
#sums = #spmd.sharding<@mesh, [{}, {}], unreduced={"gpu"}>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#link]

func.func @linear(%x: tensor<8x16xf32> {spmd.sharding = #sums}) -> tensor<8x16xi1> {
  %h = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"})>}
    : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // expected-error@+1 {{'aten.mul.Scalar' op %one: passes partial sums on, ([{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"}), but its result is compared with other values computed from the same value, and sums before and after an op are rounded differently; give it a signature without partial sums}}
  %one = aten.mul.Scalar %h {other = 3.0 : f64,
    spmd.signature = #spmd.sig<@mesh, ([{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"})>}
    : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %m = aten.amax %h {dim = [1], keepdim = true, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
    : (tensor<8x16xf32>) -> tensor<8x1xf32>
  %other = aten.mul.Scalar %m {other = 3.0 : f64, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
    : (tensor<8x1xf32>) -> tensor<8x1xf32>
  %e = aten.eq.Tensor %one, %other {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>}
    : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x16xi1>
  func.return %e : tensor<8x16xi1>
}
