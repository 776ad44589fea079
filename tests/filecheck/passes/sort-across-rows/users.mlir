// RUN: opt-tool %s --pass-pipeline=sort-across-rows,dce --mlir-print-debuginfo=false | filecheck %s

// Other users of a list get it by row; positions within a list refer to the joined lists.
spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8x6xf32> {train.batch = "0"}, %p: tensor<48xi64>) -> (tensor<8x6xf32>, tensor<48xi64>) {
  // CHECK: %y, %places = aten.sort %{{.*}} : (tensor<2x24xf32>) -> (tensor<2x24xf32>, tensor<2x24xi64>)
  // CHECK-NEXT: %y.by_row = aten.view %y {size = [8 : i64, 6 : i64], {{.*}}([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<2x24xf32>) -> tensor<8x6xf32>
  %y, %places = aten.sort %x {dim = 1 : i64, train.by_row, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>} : (tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xi64>)
  // CHECK-NEXT: aten.exp %y.by_row
  %e = aten.exp %y {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  // CHECK-NEXT: aten.remainder.Scalar %p {other = 24 : i64
  %r = aten.remainder.Scalar %p {other = 6 : i64, train.by_row, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>} : (tensor<48xi64>) -> tensor<48xi64>
  func.return %e, %r : tensor<8x6xf32>, tensor<48xi64>
}
