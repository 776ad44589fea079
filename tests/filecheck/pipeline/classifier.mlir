// RUN: opt-tool %s --mlir-print-debuginfo=false --print-ir-after-all 2>&1 >/dev/null \
// RUN:   --pass-pipeline=decompose-mean,canonicalize,cse,dce,search-strategy,insert-resharding,select-collectives,insert-frees \
// RUN:   | filecheck %s

// A classifier on its way through the pipeline, as a reader of --print-ir-after-all sees it.

// The mean of the loss becomes a sum and the count of the labels, and forward and backward divide by the count.
// CHECK-LABEL: IR Dump After decompose-mean
// CHECK:         %count = aten._to_copy %labels.counted
// CHECK:         %loss = aten.div.Tensor %loss.sum, %count
// CHECK:         %one.mean = aten.div.Tensor %one, %count {train.backward}

// Each op gets a signature: the batch is split, the weight is stored split and gathered for use, its gradient is partial.
// CHECK-LABEL: IR Dump After search-strategy
// CHECK:       func.func @step(%w: tensor<10x32xf32> {train.param = "fc.weight", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>}
// CHECK:         %y = aten.mm %x, %wt {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
// CHECK:         %labels.counted = aten.sum %valid {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>}
// CHECK:         %g = aten.mm %dyt, %x {{.*}}([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>}

// Each change of sharding becomes an op, before its first user.
// CHECK-LABEL: IR Dump After insert-resharding
// CHECK:         %w.all_gather = spmd.reshard %w to <@mesh, [{}, {}]>
// CHECK-NEXT:    %wt = aten.t %w.all_gather
// CHECK:         %count.all_reduce = spmd.reshard %count to <@mesh, []>
// CHECK-NEXT:    %loss.sum.all_reduce = spmd.reshard %loss.sum to <@mesh, []>
// CHECK-NEXT:    %loss = aten.div.Tensor %loss.sum.all_reduce, %count.all_reduce
// CHECK:         %g.reduce_scatter = spmd.reshard %g to <@mesh, [{}, {"gpu"}]>
// CHECK-NEXT:    %w.new = train.sgd %w, %g.reduce_scatter, %step, %lr

// CHECK-LABEL: IR Dump After select-collectives
// CHECK:         %w.all_gather = spmd.all_gather [{}, {"gpu"}] %w out_sharding = <@mesh, [{}, {}]> method = "flat"
// CHECK:         %count.all_reduce = spmd.all_reduce [{"gpu"}] %count out_sharding = <@mesh, []> method = "flat"
// CHECK:         %g.reduce_scatter = spmd.reduce_scatter [{}, {"gpu"}] %g out_sharding = <@mesh, [{}, {"gpu"}]> method = "flat"

// CHECK-LABEL: IR Dump After insert-frees
// CHECK:         %y = aten.mm %x, %wt
// CHECK-NEXT:    spmd.free %wt
// CHECK-NEXT:    %p = aten._log_softmax %y
// CHECK-NEXT:    spmd.free %y
// CHECK:         %g.reduce_scatter = spmd.reduce_scatter
// CHECK-NEXT:    spmd.free %g
// CHECK-NEXT:    %w.new = train.sgd
// CHECK-NEXT:    spmd.free %g.reduce_scatter
// CHECK-NEXT:    func.return %loss, %w.new

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(
  %w: tensor<10x32xf32> {train.param = "fc.weight"},
  %x: tensor<1024x32xf32> {train.batch = "x"},
  %labels: tensor<1024xi64> {train.batch = "labels"},
  %step: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<f32> {train.loss}, tensor<10x32xf32> {train.updates = 0 : i64}) {
  %wt = aten.t %w : (tensor<10x32xf32>) -> tensor<32x10xf32>
  %y = aten.mm %x, %wt : (tensor<1024x32xf32>, tensor<32x10xf32>) -> tensor<1024x10xf32>
  %p = aten._log_softmax %y {dim = 1 : i64, half_to_float = false} : (tensor<1024x10xf32>) -> tensor<1024x10xf32>
  %loss, %weight = aten.nll_loss_forward %p, %labels {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<1024x10xf32>, tensor<1024xi64>) -> (tensor<f32>, tensor<f32>)
  %one = aten.full {size = [], fill_value = 1.0 : f64, dtype = f32, train.backward} : () -> tensor<f32>
  %dp = aten.nll_loss_backward %one, %p, %labels, %weight {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"], train.backward}
    : (tensor<f32>, tensor<1024x10xf32>, tensor<1024xi64>, tensor<f32>) -> tensor<1024x10xf32>
  %dy = aten._log_softmax_backward_data %dp, %p {dim = 1 : i64, input_dtype = f32, train.backward}
    : (tensor<1024x10xf32>, tensor<1024x10xf32>) -> tensor<1024x10xf32>
  %dyt = aten.t %dy {train.backward} : (tensor<1024x10xf32>) -> tensor<10x1024xf32>
  %g = aten.mm %dyt, %x {train.backward} : (tensor<10x1024xf32>, tensor<1024x32xf32>) -> tensor<10x32xf32>
  %w.new = train.sgd %w, %g, %step, %lr {absent = ["momentum_buffer"]}
    : (tensor<10x32xf32>, tensor<10x32xf32>, tensor<f32>, tensor<f32>) -> tensor<10x32xf32>
  func.return %loss, %w.new : tensor<f32>, tensor<10x32xf32>
}
