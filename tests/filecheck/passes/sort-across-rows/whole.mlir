// RUN: opt-tool %s --pass-pipeline='sort-within-rows,dce,search-strategy{algorithm=fixed pins=dp},sort-across-rows,dce' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// If no axis splits the rows, one list has all rows.
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=1]>
spmd.cluster @one on @mesh devices [#cpu] placement [0] links [#link]
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<4x3x6xf32> {train.batch = "0"}, %e: tensor<4x3x2xi64> {train.batch = "1"},
    %w: tensor<5x6x6xf32> {train.param = "experts"}) -> (tensor<f32>, tensor<5x6x6xf32>, tensor<f32>) {
  %tokens = aten.view %x {size = [12 : i64, 6 : i64]} : (tensor<4x3x6xf32>) -> tensor<12x6xf32>
  %choices = aten.view %e {size = [24 : i64]} : (tensor<4x3x2xi64>) -> tensor<24xi64>
  // CHECK: %keys.by_row, %keys.places.by_row = aten.sort.stable {{.*}} -> (tensor<1x24xi64>, tensor<1x24xi64>)
  %keys, %order = aten.sort.stable %choices {stable = true} : (tensor<24xi64>) -> (tensor<24xi64>, tensor<24xi64>)
  %column = aten.unsqueeze %keys {dim = 1 : i64} : (tensor<24xi64>) -> tensor<24x1xi64>
  %experts = aten.arange {end = 5 : i64} : () -> tensor<5xi64>
  %alike = aten.eq.Tensor %column, %experts : (tensor<24x1xi64>, tensor<5xi64>) -> tensor<24x5xi1>
  %numbers = aten.sum.dim_IntList %alike {dim = [0 : i64]} : (tensor<24x5xi1>) -> tensor<5xi64>
  %ends = aten.cumsum %numbers {dim = 0 : i64} : (tensor<5xi64>) -> tensor<5xi64>
  %token = aten.floor_divide %order {other = 2 : i64} : (tensor<24xi64>) -> tensor<24xi64>
  // CHECK: %sent.by_row = aten.take_rows {{.*}} : (tensor<1x12x6xf32>, tensor<1x24xi64>) -> tensor<1x24x6xf32>
  // CHECK: %ends.by_row = aten.cumsum {{.*}} -> tensor<1x5xi64>
  %sent = aten.index.Tensor %tokens, %token : (tensor<12x6xf32>, tensor<24xi64>) -> tensor<24x6xf32>
  // CHECK: aten.grouped_bmm %sent.by_row, %w, %ends.by_row {{.*}} -> tensor<1x24x6xf32>
  %y = aten.grouped_mm %sent, %w, %ends : (tensor<24x6xf32>, tensor<5x6x6xf32>, tensor<5xi64>) -> tensor<24x6xf32>
  %same, %inverse = aten.sort %order : (tensor<24xi64>) -> (tensor<24xi64>, tensor<24xi64>)
  // CHECK: %back.by_row = aten.take_rows {{.*}} -> tensor<1x24x6xf32>
  // CHECK-NEXT: %back = aten.view %back.by_row {{.*}} : (tensor<1x24x6xf32>) -> tensor<24x6xf32>
  %back = aten.index.Tensor %y, %inverse : (tensor<24x6xf32>, tensor<24xi64>) -> tensor<24x6xf32>
  %scaled = aten.mul.Tensor %back, %back : (tensor<24x6xf32>, tensor<24x6xf32>) -> tensor<24x6xf32>
  %s = aten.sum %scaled : (tensor<24x6xf32>) -> tensor<f32>
  %blank = aten.zeros {size = [24 : i64, 6 : i64]} : () -> tensor<24x6xf32>
  // CHECK: aten.add_rows {{.*}}size = 24 : i64{{.*}} -> tensor<1x24x6xf32>
  %y.grad = aten.index_put %blank, %inverse, %scaled {accumulate = true} : (tensor<24x6xf32>, tensor<24xi64>, tensor<24x6xf32>) -> tensor<24x6xf32>
  // CHECK: aten.grouped_bmm_backward {{.*}} -> (tensor<1x24x6xf32>, tensor<5x6x6xf32>)
  %sent.grad, %w.grad = aten.grouped_mm_backward %sent, %w, %ends, %y.grad : (tensor<24x6xf32>, tensor<5x6x6xf32>, tensor<5xi64>, tensor<24x6xf32>) -> (tensor<24x6xf32>, tensor<5x6x6xf32>)
  %blank.x = aten.zeros {size = [12 : i64, 6 : i64]} : () -> tensor<12x6xf32>
  // CHECK: aten.add_rows {{.*}}size = 12 : i64{{.*}} -> tensor<1x12x6xf32>
  %x.grad = aten.index_put %blank.x, %token, %sent.grad {accumulate = true} : (tensor<12x6xf32>, tensor<24xi64>, tensor<24x6xf32>) -> tensor<12x6xf32>
  %n = aten.sum %x.grad : (tensor<12x6xf32>) -> tensor<f32>
  func.return %s, %w.grad, %n : tensor<f32>, tensor<5x6x6xf32>, tensor<f32>
}
