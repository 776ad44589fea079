// RUN: opt-tool %s --split-input-file --pass-pipeline=sort-across-rows --mlir-print-debuginfo=false | filecheck %s

// Rows of the batch keep separate lists if they are not split evenly.
spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @uneven
func.func @uneven(%x: tensor<8x6xf32> {train.batch = "0"}) -> (tensor<8x6xf32>, tensor<8x6xi64>) {
  // CHECK-NEXT: aten.sort %x {{.*}} -> (tensor<8x6xf32>, tensor<8x6xi64>)
  %y, %places = aten.sort %x {dim = 1 : i64, train.by_row, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], offsets={0: [0, 5, 8]}) -> ([{"gpu"}, {}], offsets={0: [0, 5, 8]}, [{"gpu"}, {}], offsets={0: [0, 5, 8]})>} : (tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xi64>)
  func.return %y, %places : tensor<8x6xf32>, tensor<8x6xi64>
}

// -----

// They also do if devices split the elements of a row.
spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @within
func.func @within(%x: tensor<4x6x3xf32> {train.batch = "0"}, %p: tensor<4x5xi64>) -> tensor<4x5x3xf32> {
  // CHECK-NEXT: aten.take_rows %x, %p {{.*}} -> tensor<4x5x3xf32>
  %y = aten.take_rows %x, %p {train.by_row, spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}, {}])>} : (tensor<4x6x3xf32>, tensor<4x5xi64>) -> tensor<4x5x3xf32>
  func.return %y : tensor<4x5x3xf32>
}

// -----

// They also do if the number of parts does not divide the number of rows.
spmd.mesh @mesh = <["gpu"=4]>
// CHECK-LABEL: func.func @few
func.func @few(%x: tensor<6x2xf32> {train.batch = "0"}) -> tensor<6x2xf32> {
  // CHECK-NEXT: aten.sort %x {{.*}} -> (tensor<6x2xf32>, tensor<6x2xi64>)
  %y, %places = aten.sort %x {dim = 1 : i64, train.by_row, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>} : (tensor<6x2xf32>) -> (tensor<6x2xf32>, tensor<6x2xi64>)
  func.return %y : tensor<6x2xf32>
}

// -----

// A sort within rows of the model itself stays a sort of rows.
spmd.mesh @mesh = <["gpu"=1]>
// CHECK-LABEL: func.func @model
func.func @model(%x: tensor<6x2xf32> {train.batch = "0"}) -> tensor<6x2xf32> {
  // CHECK-NEXT: aten.sort %x {{.*}} -> (tensor<6x2xf32>, tensor<6x2xi64>)
  %y, %places = aten.sort %x {dim = 1 : i64, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}], [{}, {}])>} : (tensor<6x2xf32>) -> (tensor<6x2xf32>, tensor<6x2xi64>)
  func.return %y : tensor<6x2xf32>
}
