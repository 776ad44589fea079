// RUN: opt-tool %s --pass-pipeline=strip-resharding,dce --mlir-print-debuginfo=false | filecheck %s

// Rows of the batch that are sorted together, by device, are sorted separately again.
spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(%keys: tensor<8x6xi64> {train.batch = "0"}, %x: tensor<48x3xf32>) -> (tensor<48xi64>, tensor<48x3xf32>) {
  %lists = aten.view %keys {size = [2 : i64, 24 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<8x6xi64>) -> tensor<2x24xi64>
  // CHECK: aten.sort {{.*}}([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}]){{.*}} -> (tensor<8x6xi64>, tensor<8x6xi64>)
  // CHECK-NEXT: %list = aten.view {{.*}} : (tensor<8x6xi64>) -> tensor<48xi64>
  %sorted, %places = aten.sort %lists {dim = 1 : i64, train.by_row, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>} : (tensor<2x24xi64>) -> (tensor<2x24xi64>, tensor<2x24xi64>)
  %list = aten.view %sorted {size = [48 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>} : (tensor<2x24xi64>) -> tensor<48xi64>
  %x.lists = aten.view %x {size = [2 : i64, 24 : i64, 3 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}, {}])>} : (tensor<48x3xf32>) -> tensor<2x24x3xf32>
  // CHECK: aten.add_rows {{.*}}size = 6 : i64{{.*}} -> tensor<8x6x3xf32>
  %sums = aten.add_rows %x.lists, %places {size = 24 : i64, train.by_row, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}, {}], [{"gpu"}, {}]) -> ([{"gpu"}, {}, {}])>} : (tensor<2x24x3xf32>, tensor<2x24xi64>) -> tensor<2x24x3xf32>
  %flat = aten.view %sums {size = [48 : i64, 3 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}, {}]) -> ([{"gpu"}, {}])>} : (tensor<2x24x3xf32>) -> tensor<48x3xf32>
  func.return %list, %flat : tensor<48xi64>, tensor<48x3xf32>
}
