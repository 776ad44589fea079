// Names that Python, the program or torch have already; ops of several results, lists, other libraries; buckets.
spmd.mesh @mesh = <["dp"=2]>
func.func @step(
    %lambda: tensor<4x6xf32> {train.batch = "lambda", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %0: tensor<2x2x4x8xf32> {train.batch = "q", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}, {}]>},
    %l: tensor<4x6xf32> {train.buffer = "1.b-c", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<f32> {train.loss}, tensor<9xf32> {train.grad = "a"}, tensor<4x2xf32> {train.grad = "b"}) {
  %1, %sum = aten.split.Tensor %lambda {split_size = 3 : i64, dim = 1 : i64, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{"dp"}, {}], [{"dp"}, {}])>} : (tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
  %n = aten.cat %1, %1, %sum {dim = 1 : i64, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], [{"dp"}, {}], [{"dp"}, {}]) -> ([{"dp"}, {}])>} : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x9xf32>
  %only = aten.split.Tensor %n {split_size = 9 : i64, dim = 1 : i64, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{"dp"}, {}])>} : (tensor<4x9xf32>) -> tensor<4x9xf32>
  %out, %lse = aten.attention %0, %0, %0 {absent = ["attn_mask"], is_causal = true, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}, {}, {}], [{"dp"}, {}, {}, {}], [{"dp"}, {}, {}, {}]) -> ([{"dp"}, {}, {}, {}], [{"dp"}, {}, {}])>} : (tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>) -> (tensor<2x2x4x8xf32>, tensor<2x2x4xf32>)
  %mask = aten.lt.Scalar %l {other = 0.0 : f64, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{"dp"}, {}])>} : (tensor<4x6xf32>) -> tensor<4x6xi1>
  %MESH = aten.masked_fill.Scalar %lambda, %mask {value = 0xFFF0000000000000 : f64, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], [{"dp"}, {}]) -> ([{"dp"}, {}])>} : (tensor<4x6xf32>, tensor<4x6xi1>) -> tensor<4x6xf32>
  %whole = spmd.all_gather [{"dp"}, {}] %MESH out_sharding = <@mesh, [{}, {}]> : tensor<4x6xf32>
  %2 = aten.opaque "aten::logcumsumexp" %whole {dim = 1 : i64, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %4 = aten._to_copy %2 {dtype = f64, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<4x6xf32>) -> tensor<4x6xf64>
  %5 = aten._to_copy %4 {dtype = f32, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<4x6xf64>) -> tensor<4x6xf32>
  %6 = aten.amax %5 {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}])>} : (tensor<4x6xf32>) -> tensor<6xf32>
  %7 = aten.amax %only {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{}], unreduced={"dp" max})>} : (tensor<4x9xf32>) -> tensor<9xf32>
  %8 = aten.amax %lse {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}, {}]) -> ([{}, {}], unreduced={"dp" max})>} : (tensor<2x2x4xf32>) -> tensor<2x4xf32>
  %token = spmd.start "all_reduce" %7, %8 out_shardings = [#spmd.sharding<@mesh, [{}]>, #spmd.sharding<@mesh, [{}, {}]>] : tensor<9xf32>, tensor<2x4xf32>
  %10 = aten.sum %6 {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<6xf32>) -> tensor<f32>
  %11, %12 = spmd.wait %token : tensor<9xf32>, tensor<2x4xf32>
  %13 = aten.t %12 {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<2x4xf32>) -> tensor<4x2xf32>
  func.return %10, %11, %13 : tensor<f32>, tensor<9xf32>, tensor<4x2xf32>
}
