"""
Programs on simulated GPUs: find errors in the use of CUDA and NCCL on a machine without them.

Each rank runs its unmodified program in this process, one after the other, on fake `cuda` tensors that have no memory.
Streams, events, the allocator and NCCL are stand-ins (`device`) that record which op accesses which bytes, and the
order between ops (`trace`); then the traces of all ranks are compared and simulated together (`check`).
"""
