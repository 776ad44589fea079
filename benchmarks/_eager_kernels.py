"""
Count the kernels and copies of rank 0 in a step of DDP or FSDP2 on simulated GPUs, as JSON on the last line.

    python benchmarks/_eager_kernels.py LIBRARY STEP ddp|fsdp2 RANKS

LIBRARY is compiled from `_cuda_hooks.cpp`, makes torch's autograd find a CUDA device that does nothing, and is loaded
before torch. Attention is the memory-efficient kernel, which CUDA uses for float32. DDP's all-reduce is a comm hook
that divides a bucket and reduces it: gradients are copied into the bucket in place of multiplied into it, which is one
kernel in both cases. Broadcasts and checks at the start are left out.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

if TYPE_CHECKING:
    import torch
    from torch import nn

STEPS = {"ddp": 1, "fsdp2": 3}
"""
Number of steps; the last one is counted. DDP rebuilds its buckets after the first step, which needs real memory, so the
first step of DDP is counted, with all gradients in one bucket.
"""


def load_before_torch(library: str) -> None:
    """Load the libraries that torch looks for once, at its import."""
    assert "torch" not in sys.modules
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    libraries = Path(spec.submodule_search_locations[0]) / "lib"
    for path in (libraries / "libc10.so", libraries / "libtorch_cpu.so", library):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def stand_ins(rank: int) -> Generator[None, None, None]:
    """Replace functions that need a device."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from simulated_cuda.device import collective
    from torch.nn.parallel import distributed as ddp

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: Any) -> torch.Tensor:
        mask, dropout, causal = given
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, dropout, causal)[0]

    values: list[tuple[object, str, Any]] = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: dist.get_world_size()),
        (torch.cuda, "current_device", lambda: rank),
        (F, "scaled_dot_product_attention", attention),
        (ddp, "_verify_param_shape_across_processes", lambda *_, **__: None),
        (ddp, "_sync_module_states", lambda *_, **__: None),
        # The check compares annotations with classes, but annotations are strings here.
        (ddp.DistributedDataParallel, "_check_comm_hook", lambda *_: None),
    ]
    kinds = {"all_gather_single": "all_gather", "all_gather_into_tensor": "all_gather"}
    kinds |= {"reduce_scatter_single": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter"}
    values += [(dist, name, collective(kind)) for name, kind in kinds.items() if hasattr(dist, name)]
    with ExitStack() as stack:
        for home, name, value in values:
            stack.enter_context(patch.object(home, name, value))
        yield


def wrapped(model: nn.Module, peer: str) -> nn.Module:
    """Return the model wrapped in DDP or FSDP2."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils._python_dispatch import _disable_current_modes

    if peer == "ddp":

        def reduced(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
            buffer, done = bucket.buffer(), torch.futures.Future[torch.Tensor]()
            dist.all_reduce(buffer.div_(dist.get_world_size()))
            done.set_result(buffer)
            return done

        parallel = DistributedDataParallel(model, device_ids=[0])
        parallel.register_comm_hook(None, reduced)
        parallel.logger = MagicMock()
        return parallel
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with _disable_current_modes():
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for block in getattr(model, "h", []) or getattr(model, "layers", []):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def count(step_name: str, peer: str, ranks: int) -> dict[str, Any]:
    """Train for some steps, and return the kernels, copies and launches of the last one."""
    from dataclasses import replace

    import torch
    from simulated_cuda.device import simulated_rank
    from simulated_cuda.trace import Trace

    from shardwright.models import training_step

    step, trace = training_step(step_name), Trace(0, defaultdict(Counter[str]))
    with simulated_rank(0, ranks, trace), stand_ins(0):
        with torch.device("cuda:0"):
            model = wrapped(step.build_model(), peer)
        optimizer = step.optimizer(model.parameters())
        for group in optimizer.param_groups:
            group["fused"] = True
        items = [item for item in step.batch if isinstance(item, torch.Tensor)]
        rows = [torch.empty((len(item) // ranks, *item.shape[1:]), dtype=item.dtype, device="cuda:0") for item in items]
        local = replace(step, batch=tuple(rows))
        # The first update makes the states.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for _ in range(STEPS[peer]):
            for counter in (trace.kernels, trace.copied, trace.launches):
                counter.clear()
            optimizer.zero_grad()
            local.compute_loss(model).backward()
            optimizer.step()
    return {"kernels": trace.kernels, "copied": trace.copied, "launches": len(trace.launches)}


def main() -> None:
    library, step_name, peer, ranks = sys.argv[1:]
    load_before_torch(library)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    print(json.dumps(count(step_name, peer, int(ranks))), flush=True)


if __name__ == "__main__":
    main()
