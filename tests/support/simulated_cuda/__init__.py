"""
Programs on simulated GPUs: what CUDA and NCCL would punish, found on a machine without them.

Each rank runs its unmodified program in this process, one after the other, on fake `cuda` tensors that have no memory.
Streams, events, the allocator and NCCL are stand-ins (`device`) that write down who touches which bytes after what
(`trace`); then the ranks are compared, and run against one another (`check`).
"""
