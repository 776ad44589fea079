// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

spmd.mesh @mesh = <["dp"=2, "tp"=2]>

// CHECK-LABEL: func.func @batch_and_columns
func.func @batch_and_columns(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
  // CHECK: #spmd.sig<@mesh, ([{"dp"}, {}], [{}, {"tp"}]) -> ([{"dp"}, {"tp"}])>
  %y = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], [{}, {"tp"}]) -> ([{"dp"}, {"tp"}])>} : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// A split of the reduced dim gives partial sums.
// CHECK-LABEL: func.func @reduced_dim
func.func @reduced_dim(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
  // CHECK: -> ([{}, {}], unreduced={"dp", "tp"})>
  %y = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {"dp", "tp"}], [{"dp", "tp"}, {}]) -> ([{}, {}], unreduced={"dp", "tp"})>} : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// The bias must be added once, so it is partial if the product is.
// CHECK-LABEL: func.func @bias_is_added_once
func.func @bias_is_added_once(%b: tensor<8xf32>, %x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
  // CHECK: ([{}], unreduced={"tp"}, [{}, {"tp"}], [{"tp"}, {}]) -> ([{}, {}], unreduced={"tp"})
  %y = aten.addmm %b, %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"tp"}, [{}, {"tp"}], [{"tp"}, {}]) -> ([{}, {}], unreduced={"tp"})>} : (tensor<8xf32>, tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// Uneven parts belong to a factor: 6 rows split by 1/3 and 2/3 are 42 elements split by the same shares.
// CHECK-LABEL: func.func @uneven_rows_of_a_view
func.func @uneven_rows_of_a_view(%x: tensor<6x7xf32>) -> tensor<42xf32> {
  // CHECK: ([{"dp"}, {}], offsets={0: [0, 2, 6]}) -> ([{"dp"}], offsets={0: [0, 14, 42]})
  %y = aten.view %x {size = [42], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], offsets={0: [0, 2, 6]}) -> ([{"dp"}], offsets={0: [0, 14, 42]})>} : (tensor<6x7xf32>) -> tensor<42xf32>
  func.return %y : tensor<42xf32>
}
