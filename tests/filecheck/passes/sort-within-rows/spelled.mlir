// RUN: opt-tool %s --pass-pipeline=sort-within-rows,dce | filecheck %s

// The form in transformers: the tokens of choices are a list of constants, experts are counted by a histogram of their
// numbers as floats, the inverse is written by index, and weights are sorted as tokens are.
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<4x3x6xf32> {train.batch = "0"}, %e: tensor<4x3x2xi64> {train.batch = "1"},
    %p: tensor<4x3x2xf32> {train.batch = "2"}, %w: tensor<5x6x6xf32>) -> tensor<f32> {
  %tokens = aten.view %x {size = [12 : i64, 6 : i64]} : (tensor<4x3x6xf32>) -> tensor<12x6xf32>
  %choices = aten.view %e {size = [24 : i64]} : (tensor<4x3x2xi64>) -> tensor<24xi64>
  %weights = aten.view %p {size = [24 : i64]} : (tensor<4x3x2xf32>) -> tensor<24xf32>
  %each = aten.arange {end = 12 : i64} : () -> tensor<12xi64>
  %column = aten.unsqueeze %each {dim = 1 : i64} : (tensor<12xi64>) -> tensor<12x1xi64>
  %twice = aten.expand %column {size = [12 : i64, 2 : i64]} : (tensor<12x1xi64>) -> tensor<12x2xi64>
  %copy = aten.clone %twice : (tensor<12x2xi64>) -> tensor<12x2xi64>
  %token = aten.view %copy {size = [24 : i64]} : (tensor<12x2xi64>) -> tensor<24xi64>
  %keys, %order = aten.sort %choices : (tensor<24xi64>) -> (tensor<24xi64>, tensor<24xi64>)
  // CHECK: %token.sorted = aten.floor_divide {{.*}} {other = 2 : i64}
  %token.sorted = aten.index.Tensor %token, %order : (tensor<24xi64>, tensor<24xi64>) -> tensor<24xi64>
  %sent = aten.index.Tensor %tokens, %token.sorted : (tensor<12x6xf32>, tensor<24xi64>) -> tensor<24x6xf32>
  // CHECK: %weights.sorted.by_row = aten.gather {{.*}} : (tensor<4x6xf32>, tensor<4x6xi64>) -> tensor<4x6xf32>
  %weights.sorted = aten.index.Tensor %weights, %order : (tensor<24xf32>, tensor<24xi64>) -> tensor<24xf32>
  %floats = aten._to_copy %keys {dtype = f32} : (tensor<24xi64>) -> tensor<24xf32>
  %numbers = aten.histc %floats {bins = 5 : i64, max = 4 : i64} : (tensor<24xf32>) -> tensor<5xf32>
  %ends = aten.cumsum %numbers {dim = 0 : i64, dtype = i32} : (tensor<5xf32>) -> tensor<5xi32>
  // CHECK: aten.grouped_bmm
  %y = aten.grouped_mm %sent, %w, %ends : (tensor<24x6xf32>, tensor<5x6x6xf32>, tensor<5xi32>) -> tensor<24x6xf32>
  %wide = aten.unsqueeze %weights.sorted {dim = 1 : i64} : (tensor<24xf32>) -> tensor<24x1xf32>
  // CHECK: %scaled = aten.mul.Tensor
  %scaled = aten.mul.Tensor %y, %wide : (tensor<24x6xf32>, tensor<24x1xf32>) -> tensor<24x6xf32>
  %blank = aten.empty_like %order : (tensor<24xi64>) -> tensor<24xi64>
  %rank = aten.arange {end = 24 : i64} : () -> tensor<24xi64>
  // CHECK: aten.scatter.src {{.*}} : (tensor<4x6xi64>, tensor<4x6xi64>, tensor<4x6xi64>) -> tensor<4x6xi64>
  %inverse = aten.index_put %blank, %order, %rank : (tensor<24xi64>, tensor<24xi64>, tensor<24xi64>) -> tensor<24xi64>
  // CHECK: %back = aten.view %back.by_row
  %back = aten.index.Tensor %scaled, %inverse : (tensor<24x6xf32>, tensor<24xi64>) -> tensor<24x6xf32>
  %apart = aten.view %back {size = [12 : i64, 2 : i64, 6 : i64]} : (tensor<24x6xf32>) -> tensor<12x2x6xf32>
  %sum = aten.sum.dim_IntList %apart {dim = [1 : i64]} : (tensor<12x2x6xf32>) -> tensor<12x6xf32>
  %s = aten.sum %sum : (tensor<12x6xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
