// RUN: opt-tool %s -p 'balance-ratios{ratios="0.4,0.3,0.2,0.1"}' --mlir-print-debuginfo=false | filecheck %s

// The 42 of a 6x7 splits at the boundaries of the 6, since offsets belong to factors.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#link]
// CHECK: %x: tensor<6x7xf32> {{.*}}[{"gpu"}, {}], offsets={0: [0, 2, 4, 5, 6]}
// CHECK: spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.4, 0.3, 0.2, 0.1]}>]
func.func @step(%x: tensor<6x7xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
    -> tensor<42xf32> {
  // CHECK: aten.view
  // CHECK-SAME: offsets={0: [0, 2, 4, 5, 6]}) -> ([{"gpu"}], offsets={0: [0, 14, 28, 35, 42]})
  %flat = aten.view %x {size = [42 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}], offsets={0: [0, 7, 21, 28, 42]})>
  } : (tensor<6x7xf32>) -> tensor<42xf32>
  // CHECK: aten.relu
  // CHECK-SAME: ([{"gpu"}], offsets={0: [0, 14, 28, 35, 42]}) -> ([{"gpu"}], offsets={0: [0, 14, 28, 35, 42]})
  %y = aten.relu %flat {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>}
    : (tensor<42xf32>) -> tensor<42xf32>
  func.return %y : tensor<42xf32>
}
