"""DTensor on single ops: four ranks in one process, with real numbers, on splits of its kind (even ones)."""

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
    """Runs functions of tensors on DTensors, and notes whether any op was run on parts."""

    def __init__(self) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        self.sharded = False
        propagator = DTensor._op_dispatcher.sharding_propagator
        noted = self._noting(propagator.propagate_op_sharding_non_cached)
        for name in ("propagate_op_sharding", "propagate_op_sharding_non_cached"):
            setattr(propagator, name, noted)

    def begin(self) -> None:
        """Forget what ops were run on."""
        self.sharded = False
        _clear_fast_path_sharding_prop_cache()

    def run(
        self, function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], drawn: random.Random
    ) -> list[torch.Tensor]:
        """The whole results of `function` on inputs of random placements, even splits and copies."""
        with LocalTensorMode(RANKS):
            mesh = init_device_mesh("cpu", (RANKS,))
            spread = [distribute_tensor(each, mesh, [drawn.choice(_placements(each))]) for each in inputs]
            found = [each.full_tensor() if isinstance(each, DTensor) else each for each in function(*spread)]
        return [each.reconcile() if isinstance(each, LocalTensor) else each for each in found]

    def _noting(self, propagate: Any) -> Callable[[Any], Any]:
        def noted(schema: Any) -> Any:
            found = propagate(schema)
            used = found.redistribute_schema if found.needs_redistribute else schema
            specs = [*used.args_spec, *pytree.tree_leaves(found.output_spec)]
            self.sharded |= any(not each.is_replicate() for spec in specs if spec for each in spec.placements)
            return found

        return noted


def _placements(tensor: torch.Tensor) -> list[Any]:
    shards = [Shard(dim) for dim, size in enumerate(tensor.shape) if size and size % RANKS == 0]
    return [*shards, *shards, Replicate()]
