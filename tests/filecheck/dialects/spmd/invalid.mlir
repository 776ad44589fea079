// RUN: opt-tool %s --split-input-file --verify-diagnostics

spmd.mesh @mesh = <["gpu"=2]>
func.func @axis_that_does_not_exist(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'spmd.reshard' op %y: mesh @mesh has no axis "gpus"; its axes are "gpu"=2}}
  %y = spmd.reshard %x to <@mesh, [{"gpus"}, {}]> : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @mesh_that_does_not_exist(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
  %y = spmd.reshard %x to <@other, [{"gpu"}, {}]> : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @dims_missing(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{sharding [{"gpu"}] has 1 dims, the value has 2}}
  %y = spmd.reshard %x to <@mesh, [{"gpu"}]> : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @boundaries_of_another_size(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{offsets [0, 1, 5] of dim 0 must be 3 ascending numbers from 0 to the dim's size 4}}
  %y = spmd.reshard %x to <@mesh, [{"gpu"}, {}], offsets={0: [0, 1, 5]}> : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=8]>
// expected-error@+1 {{'func.func' op @more_parts_than_rows: spmd.sharding of argument 0: sharding [{"gpu"}, {}] splits dim 0 of size 4 evenly into 8 parts}}
func.func @more_parts_than_rows(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.sharding of result 0: mesh @mesh has no axis "gpus"}}
func.func @result_on_no_axis(%x: tensor<4xf32>) -> (tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpus"}]>}) {
  func.return %x : tensor<4xf32>
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @gather_of_what_is_whole(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'spmd.all_gather' does not convert [{}, {}] to [{"gpu"}, {}]}}
  %y = spmd.all_gather [{"gpu"}, {}] %x out_sharding = <@mesh, [{"gpu"}, {}]> : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @axes_other_than_those_of_the_shardings(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'spmd.slice' works on axes [{}, {"gpu"}] but its shardings imply [{"gpu"}, {}]}}
  %y = spmd.slice [{}, {"gpu"}] %x out_sharding = <@mesh, [{"gpu"}, {}]> : tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @start_of_what_sends_nothing(%x: tensor<4xf32>) {
  // expected-error@+1 {{spmd.kind is "slice", expected one of "all_reduce", "reduce_scatter", "all_gather", "all_to_all"}}
  %t = spmd.start "slice" %x out_shardings = [#spmd.sharding<@mesh, [{"gpu"}]>] : tensor<4xf32>
  func.return
}

// -----

#rows = #spmd.sharding<@mesh, [{"node"}]>
#parts = #spmd.sharding<@mesh, [{"gpu"}]>
#whole = #spmd.sharding<@mesh, [{}]>
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
func.func @bucket_over_two_axes(%x: tensor<4xf32> {spmd.sharding = #rows}, %y: tensor<4xf32> {spmd.sharding = #parts}) {
  // expected-error@+1 {{'spmd.start' works on [{"gpu"}] and [{"node"}] at once, expected one set of axes}}
  %t = spmd.start "all_gather" %x, %y out_shardings = [#whole, #whole] : tensor<4xf32>, tensor<4xf32>
  func.return
}

// -----

#rows = #spmd.sharding<@mesh, [{"gpu"}]>
spmd.mesh @mesh = <["gpu"=2]>
func.func @wait_for_another_type(%x: tensor<4xf32> {spmd.sharding = #rows}) {
  %t = spmd.start "all_gather" %x out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<4xf32>
  // expected-error@+1 {{'spmd.wait' has different types than the operands of its 'spmd.start'}}
  %y = spmd.wait %t : tensor<8xf32>
  func.return
}

// -----

#rows = #spmd.sharding<@mesh, [{"gpu"}]>
spmd.mesh @mesh = <["gpu"=2]>
func.func @never_waited_for(%x: tensor<4xf32> {spmd.sharding = #rows}) {
  // expected-error@+1 {{'spmd.start' is waited for 0 times, expected once}}
  %t = spmd.start "all_gather" %x out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2, "micro"=4 temporal]>
func.func @a_part_that_there_is_not(%x: tensor<4xf32>) {
  // expected-error@+1 {{spmd.at is part 4 of "micro", expected a part of an axis of time: "micro" of 4 parts}}
  %y = aten.neg %x {spmd.at = {micro = 4 : i64}} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @a_part_of_an_axis_of_devices(%x: tensor<4xf32>) {
  // expected-error@+1 {{spmd.at is part 0 of "gpu", expected a part of an axis of time: there are none}}
  %y = aten.neg %x {spmd.at = {gpu = 0 : i64}} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}
