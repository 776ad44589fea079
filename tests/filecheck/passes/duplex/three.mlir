// RUN: opt-tool %s --pass-pipeline=duplex --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// Three parts: each communicates while the two others compute. Sums are accumulated part by part.

spmd.mesh @mesh = <["micro"=3 temporal, "gpu"=2]>

func.func @step(%x: tensor<6x4xf32> {train.batch = "0"}) -> tensor<f32> {
  // CHECK: %q.a = spmd.slice [{}, {"gpu"}] %p.a
  // CHECK-NEXT: %r.a.started = spmd.start "all_gather" %q.a {{.*}}spmd.at = {micro = 0 : i64}
  // CHECK-NEXT: %p.b = spmd.slice
  // CHECK-NEXT: %q.b = spmd.slice [{}, {"gpu"}] %p.b
  // CHECK-NEXT: %r.b.started = spmd.start "all_gather" %q.b {{.*}}spmd.at = {micro = 1 : i64}
  // CHECK: %q.c = spmd.slice [{}, {"gpu"}] %p.c
  // CHECK-NEXT: %r.a = spmd.wait %r.a.started
  // CHECK-NEXT: %r.c.started = spmd.start "all_gather" %q.c {{.*}}spmd.at = {micro = 2 : i64}
  // CHECK-NEXT: %s.a = aten.sum %r.a
  // CHECK-NEXT: %r.b = spmd.wait %r.b.started
  // CHECK-NEXT: %s.b = aten.sum %r.b
  // CHECK-NEXT: %t.2 = spmd.accumulate %s.a, %s.b out_sharding = <@mesh, [], unreduced={"micro"}> : tensor<f32>
  // CHECK-NEXT: %r.c = spmd.wait %r.c.started
  // CHECK-NEXT: %s.c = aten.sum %r.c
  // CHECK-NEXT: %t = spmd.accumulate %t.2, %s.c out_sharding = <@mesh, []> : tensor<f32>
  %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<6x4xf32>
  %q = spmd.slice [{}, {"gpu"}] %p out_sharding = <@mesh, [{"micro"}, {"gpu"}]> : tensor<6x4xf32>
  %r = spmd.all_gather [{}, {"gpu"}] %q out_sharding = <@mesh, [{"micro"}, {}]> : tensor<6x4xf32>
  %s = aten.sum %r {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>}
    : (tensor<6x4xf32>) -> tensor<f32>
  %t = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
  func.return %t : tensor<f32>
}
