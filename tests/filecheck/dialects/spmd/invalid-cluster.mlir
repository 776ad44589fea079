// RUN: opt-tool %s --split-input-file --verify-diagnostics

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
spmd.cluster @c on @other devices [#cpu] placement [0, 0] links [#link]

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{cluster @c places 3 devices, its mesh <["gpu"=2]> has 2}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 0, 0] links [#link]

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{cluster @c places a device of kind 1, it describes 1 kinds}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 1] links [#link]

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{cluster @c has no link for mesh axis "gpu"}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 0] links []
