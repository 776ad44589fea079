// RUN: opt-tool %s --pass-pipeline=prepare,search-strategy,program{parts=2},finish --print-ir-after-all 2>&1 >/dev/null \
// RUN:   | filecheck %s
// RUN: not opt-tool %s --pass-pipeline=prepare,search-strategy,programm,finish 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not opt-tool %s --pass-pipeline=prepare,program{mode=parts} 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not opt-tool %s --pass-pipeline=search-strategy,program{mode=accumulate} 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not opt-tool %s --pass-pipeline=program --print-ir-after=program 2>&1 | filecheck %s --check-prefix=DUMP

// Named pipelines are replaced by their passes, so each pass is dumped, and named in errors, separately.

// CHECK:      IR Dump After decompose-mean
// CHECK:      IR Dump After decompose-cross-entropy
// CHECK:      IR Dump After make-batch-major
// CHECK:      IR Dump After sort-within-rows
// CHECK:      IR Dump After canonicalize
// CHECK:      IR Dump After cse
// CHECK:      IR Dump After detach-factories
// CHECK:      IR Dump After dce
// CHECK:      IR Dump After search-strategy
// CHECK:      IR Dump After split-batch
// CHECK:      IR Dump After sort-across-rows
// CHECK:      IR Dump After insert-resharding
// CHECK:      IR Dump After agree-on-choices
// CHECK:      IR Dump After select-collectives
// CHECK:      IR Dump After accumulate
// CHECK:      IR Dump After overlap
// CHECK:      IR Dump After join-updates
// CHECK:      IR Dump After check-order
// CHECK:      IR Dump After reuse-buffers
// CHECK:      IR Dump After check-memory
// CHECK:      IR Dump After insert-frees
// CHECK:      spmd.free

// NAME:      <pass-pipeline>:1:25: error: unknown pass 'programm'
// NAME-NEXT:   prepare,search-strategy,programm,finish
// NAME-NEXT:                           ^^^^^^^^
// NAME-NEXT: hint: did you mean 'program'?

// OPTION: error: option 'mode' of pass 'program' takes whole | accumulate | duplex | pipeline | none, not 'parts'
// OPTION: hint: its options are mode: whole

// PASS: error: pass 'accumulate' failed

// DUMP: error: there is no pass 'program' in the pipeline to print the IR around
// DUMP: hint: it runs sort-across-rows, insert-resharding

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(%x: tensor<64x8xf32> {train.batch = "x"}, %w: tensor<8x8xf32> {train.param = "w"})
    -> (tensor<f32> {train.loss}) {
  %y = aten.mm %x, %w : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
  %z = aten.relu %y : (tensor<64x8xf32>) -> tensor<64x8xf32>
  %loss = aten.sum %z : (tensor<64x8xf32>) -> tensor<f32>
  func.return %loss : tensor<f32>
}
