"""
The check on GPUs: what only real devices can prove, on the ranks of one job; the same code runs on gloo and CPUs.

    make gpu-check [GPU_CHECK_ARGS="--quick --only equality"]
    PYTHONPATH=benchmarks torchrun --nnodes 2 --nproc-per-node 8 ... -m gpu_check      (on every node)

`__main__` starts the ranks, `supervisor` runs each stage in processes of its own, `job` is what these processes do, and
there is a module for each stage (`stages` lists them). `report` writes what they found.
"""
