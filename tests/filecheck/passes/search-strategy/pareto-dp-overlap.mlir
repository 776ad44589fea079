// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=eliminate}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=ELIMINATE
// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=pareto-dp}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=PARETO

// Communication that the other half of the batch hides changes the choice. A product takes 2 * 64^3 operations at 1e9 a
// second: 524.288 microseconds, or 262.144 split over two devices. The second product reads %a twice, so that after a
// split first product %a must change its sharding: 1 microsecond, 4096 bytes at 1e7 a second, 1 nanosecond: 410.601.
//
//   sum: first product everywhere         524.288 + 262.144 and a nanosecond for the slice of %a, the least of the sum
//        first product split              262.144 + 410.601 + 262.144 = 934.889
//   psi: half a split product is p = 131.072, half of the communication c = 205.3005
//        first phase                      psi = 0 + 0 + max(0, 0) + max(0, p) + p = 262.144, phi = -p
//        second phase                     psi + phi + max(p, c) + max(c, p) + p = 131.072 + 2 * 205.3005 + 131.072 = 672.745
//        first product everywhere         786.433, as there is nothing to hide

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-7>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// ELIMINATE: cost = 0.000786433
// PARETO: algorithm = "pareto-dp", cost = 6.727450e-04 : f64, lower_bound = 6.727450e-04 : f64
func.func @step(%x: tensor<64x64xf32> {train.batch = "x"}, %y: tensor<64x64xf32> {train.batch = "y"}) -> tensor<64x64xf32> {
  // ELIMINATE: %a = aten.mm %x, %y {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>}
  // PARETO: %a = aten.mm %x, %y {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
  // PARETO: %b = aten.mm %a, %a {spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>}
  %a = aten.mm %x, %y : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = aten.mm %a, %a : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %b : tensor<64x64xf32>
}
