// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --mlir-print-op-generic | opt-tool --mlir-print-debuginfo=false | filecheck %s

// A temporal axis divides time on the same devices.
// CHECK: spmd.mesh @mesh = <["node"=2, "gpu"=3, "micro"=4 temporal]>
spmd.mesh @mesh = <["node"=2, "gpu"=3, "micro"=4 temporal]>

"test.op"() {
  // CHECK: whole = #spmd.sharding<@mesh, []>
  whole = #spmd.sharding<@mesh, []>,
  // CHECK-SAME: major_to_minor = #spmd.sharding<@mesh, [{"node", "gpu"}, {}]>
  major_to_minor = #spmd.sharding<@mesh, [{"node", "gpu"}, {}]>,
  // CHECK-SAME: partial = #spmd.sharding<@mesh, [{"gpu"}], unreduced={"node", "micro" max}>
  partial = #spmd.sharding<@mesh, [{"gpu"}], unreduced={"node", "micro" max}>,
  // CHECK-SAME: uneven = #spmd.sharding<@mesh, [{}, {"gpu"}], offsets={1: [0, 4, 4, 7]}>
  uneven = #spmd.sharding<@mesh, [{}, {"gpu"}], offsets={1: [0, 4, 4, 7]}>,
  // CHECK-SAME: both = #spmd.sharding<@mesh, [{"gpu"}], unreduced={"node" min}, offsets={0: [0, 1, 2, 9]}>
  both = #spmd.sharding<@mesh, [{"gpu"}], unreduced={"node" min}, offsets={0: [0, 1, 2, 9]}>,
  // CHECK-SAME: none = #spmd.sig<@mesh, () -> ([{"gpu"}])>
  none = #spmd.sig<@mesh, () -> ([{"gpu"}])>,
  // CHECK-SAME: several = #spmd.sig<@mesh, ([{"gpu"}], unreduced={"node"}, [{}]) -> ([{"gpu"}])>
  several = #spmd.sig<@mesh, ([{"gpu"}], unreduced={"node"}, [{}]) -> ([{"gpu"}])>,
  // CHECK-SAME: shares = #spmd.ratios<@mesh, {"gpu" = [0.5, 0.25, 0.25], "node" = [1.0, 0.0]}, segment = 1>
  shares = #spmd.ratios<@mesh, {"node" = [1.0, 0.0], "gpu" = [0.5, 0.25, 0.25]}, segment = 1>,
  // CHECK-SAME: rule = #spmd.rule<"([b*s, k]) -> ([b, s, k]) {b=2, s=3}">
  rule = #spmd.rule<"([b*s, k]) -> ([b, s, k]) {b=2, s=3}">,
  // CHECK-SAME: table = #spmd.rule<"([v, e], [b]) -> ([b, e]) reduction={v} indexed={v: 1}">
  table = #spmd.rule<"([v, e], [b]) -> ([b, e]) reduction={v} indexed={v: 1}">
} : () -> ()
