// RUN: opt-tool %s --split-input-file --verify-diagnostics

spmd.mesh @mesh = <["gpu"=2]>
func.func @no_such_method(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) {
  // expected-error@+1 {{spmd.method is "banana", expected one of "flat", "padded", "grouped_broadcast", "hierarchical"}}
  %y = spmd.all_gather [{"gpu"}, {}] %x out_sharding = <@mesh, [{}, {}]> method = "banana" : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @a_method_of_another_kind(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) {
  // expected-error@+1 {{'spmd.all_to_all' of kind all_to_all has the method "grouped_broadcast", expected one of "flat", "padded", "hierarchical"}}
  %y = spmd.all_to_all [{}, {"gpu"}] %x out_sharding = <@mesh, [{}, {"gpu"}]> method = "grouped_broadcast" : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @one_axis_has_no_levels(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) {
  // expected-error@+1 {{'spmd.all_gather' over [{"gpu"}] has the method "hierarchical", which needs several spatial axes in the mesh's order and, in an all-to-all, two dims}}
  %y = spmd.all_gather [{"gpu"}, {}] %x out_sharding = <@mesh, [{}, {}]> method = "hierarchical" : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["node"=2, "gpu"=2]>
func.func @boundaries_move_in_one_phase(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"node", "gpu"}], offsets={0: [0, 1, 3, 6, 8]}>}) {
  // expected-error@+1 {{'spmd.start' over [{"node", "gpu"}] has the method "hierarchical", which needs}}
  %y = spmd.start "all_to_all" %x out_shardings = [#spmd.sharding<@mesh, [{"node", "gpu"}]>] method = "hierarchical" : tensor<8xf32>
  %w = spmd.wait %y : tensor<8xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @nothing_is_sent(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'spmd.slice' of kind slice has the method "flat", expected none, since it sends nothing}}
  %y = spmd.slice [{"gpu"}, {}] %x out_sharding = <@mesh, [{"gpu"}, {}]> method = "flat" : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @text_in_the_generic_form(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) {
  // expected-error@+1 {{should be of base attribute spmd.method}}
  %y = "spmd.all_gather"(%x) <{out_sharding = #spmd.sharding<@mesh, [{}, {}]>, axes = #spmd.dim_axes[{"gpu"}, {}], method = "flat"}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}
