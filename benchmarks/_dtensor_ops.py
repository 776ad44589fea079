"""DTensor on single ops: four simulated ranks in one process, with real numbers and even splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import _clear_fast_path_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

RANKS = 4


class DTensorRunner:
    """Runs functions of tensors on DTensors, and records whether any op had a sharded operand or result."""

    def __init__(self) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        self.sharded = False
        propagator = DTensor._op_dispatcher.sharding_propagator
        noted = self._noting(propagator.propagate_op_sharding_non_cached)
        for name in ("propagate_op_sharding", "propagate_op_sharding_non_cached"):
            setattr(propagator, name, noted)

    def begin(self) -> None:
        """Reset the record of sharded ops."""
        self.sharded = False
        _clear_fast_path_sharding_prop_cache()

    def run(
        self, function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], drawn: random.Random
    ) -> list[torch.Tensor]:
        """Return the full results of `function` on inputs that are split evenly or replicated at random."""
        with LocalTensorMode(RANKS):
            mesh = init_device_mesh("cpu", (RANKS,))
            spread = [distribute_tensor(t, mesh, [drawn.choice(_placements(t))]) for t in inputs]
            results = [t.full_tensor() if isinstance(t, DTensor) else t for t in function(*spread)]
        return [t.reconcile() if isinstance(t, LocalTensor) else t for t in results]

    def _noting(self, propagate: Any) -> Callable[[Any], Any]:
        def record(schema: Any) -> Any:
            output = propagate(schema)
            used = output.redistribute_schema if output.needs_redistribute else schema
            specs = [*used.args_spec, *pytree.tree_leaves(output.output_spec)]
            self.sharded |= any(not each.is_replicate() for spec in specs if spec for each in spec.placements)
            return output

        return record


def _placements(tensor: torch.Tensor) -> list[Any]:
    shards = [Shard(dim) for dim, size in enumerate(tensor.shape) if size and size % RANKS == 0]
    return [*shards, *shards, Replicate()]
