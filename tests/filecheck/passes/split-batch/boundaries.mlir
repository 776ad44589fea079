// RUN: opt-tool %s --pass-pipeline=split-batch --mlir-print-debuginfo=false | filecheck %s

// Parts have whole rows of the batch, also through reshapes, and each part is split by the ratios.

spmd.mesh @mesh = <["gpu"=2]>

func.func @step(%x: tensor<6x7xf32> {train.batch = "0"}) -> tensor<f32> attributes {
  spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.7, 0.3]}>]
} {
  // CHECK: aten.view %x {{.*}}([{"micro", "gpu"}, {}], offsets={0: [0, 2, 3, 5, 6]}) -> ([{"micro", "gpu"}], offsets={0: [0, 14, 21, 35, 42]})>
  %v = aten.view %x {size = [42 : i64], spmd.signature = #spmd.sig<@mesh,
    ([{"gpu"}, {}], offsets={0: [0, 4, 6]}) -> ([{"gpu"}], offsets={0: [0, 28, 42]})>
  } : (tensor<6x7xf32>) -> tensor<42xf32>
  // CHECK: aten.neg %v {{.*}}([{"micro"}]) -> ([{"micro"}])>
  %n = aten.neg %v {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<42xf32>) -> tensor<42xf32>
  %s = aten.sum %n {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<42xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
