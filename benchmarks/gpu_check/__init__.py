"""
The check on GPUs: tests that only real devices can run, on the ranks of one job. All of it also runs on gloo and CPUs.

    make gpu-check [GPU_CHECK_ARGS="--quick --only equality"]
    PYTHONPATH=benchmarks torchrun --nnodes 2 --nproc-per-node 8 ... -m gpu_check      (on every node)

`__main__` starts the ranks, `supervisor` runs each stage in separate processes, `job` is the code of these processes,
and each stage has a module (`stages` lists them). `report` writes their results.
"""
