"""Torch's own parallelism as a peer: DistributedDataParallel, FSDP2 and tensor parallelism, each compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.calling import batch_items

from .job import Job

Side = Callable[[], torch.Tensor]
"""A function that trains one step and returns the loss of this rank's part of the batch."""

BLOCK_PLAN = {
    "attn.q": ColwiseParallel,
    "attn.k": ColwiseParallel,
    "attn.v": ColwiseParallel,
    "attn.out": RowwiseParallel,
    "mlp.up": ColwiseParallel,
    "mlp.down": RowwiseParallel,
}
"""Megatron's layout of a block of the shipped transformers. Modules outside blocks are replicated."""


def ddp(job: Job, step: TrainingStep, *, compiled: bool = False) -> Side:
    """Return DistributedDataParallel around the model, with this rank's rows of the batch."""
    ids = [job.device.index] if job.is_cuda else None
    model = nn.parallel.DistributedDataParallel(_model(job, step), device_ids=ids)
    return _side(job, step, _compiled(model, compiled), _rows(job, step))


def fsdp2(job: Job, step: TrainingStep, *, compiled: bool = False) -> Side:
    """Return `fully_shard` on every block and on the model, with FSDP2's own policy for mixed precision."""
    model, mesh = _model(job, step), init_device_mesh(job.device.type, (job.world,))
    policy = MixedPrecisionPolicy()
    if step.precision is not None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in _blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return _side(job, replace(step, precision=None), _compiled(model, compiled), _rows(job, step))


def tensor_parallel(job: Job, step: TrainingStep, *, compiled: bool = False) -> Side:
    """
    Return `parallelize_module` by Megatron's layout, with the whole batch on each rank.

    Raises:
        ValueError: the number of heads is not a multiple of the number of ranks.
    """
    model, mesh = _model(job, step), init_device_mesh(job.device.type, (job.world,))
    for block in _blocks(model):
        attention: Any = block.attn
        if attention.heads % job.world:
            raise ValueError(f"torch's tensor parallelism cannot split {attention.heads} heads over {job.world} ranks")
        attention.heads //= job.world
        parallelize_module(block, mesh, {name: style() for name, style in BLOCK_PLAN.items()})
    items = tuple(item.to(job.device) for item in batch_items(step.batch).values())
    return _side(job, step, _compiled(model, compiled), items)


PEERS: dict[str, Callable[..., Side]] = {"DDP": ddp, "FSDP2": fsdp2, "torch tensor parallel": tensor_parallel}
"""Peers by their names in the report."""


def mean_loss(job: Job, loss: torch.Tensor) -> float:
    """Return the loss of the batch from each rank's loss of an equal part."""
    whole = loss.detach().clone().float()
    dist.all_reduce(whole)
    return whole.item() / job.world


def _model(job: Job, step: TrainingStep) -> nn.Module:
    """Return the model with the weights of seed 0, like `Executor.initialize`."""
    torch.manual_seed(0)
    return step.build_model().to(job.device)


def _blocks(model: nn.Module) -> Iterable[Any]:
    return getattr(model, "h", ())


def _compiled(model: nn.Module, compiled: bool) -> nn.Module:
    if compiled:
        model.compile()
    return model


def _rows(job: Job, step: TrainingStep) -> tuple[torch.Tensor, ...]:
    """Return this rank's rows of the batch, on its device."""
    return tuple(item.chunk(job.world)[job.rank].to(job.device) for item in batch_items(step.batch).values())


def _side(job: Job, step: TrainingStep, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Side:
    # Multi-tensor updates refuse a mix of DTensors and other tensors, so each kind gets its own optimizer.
    parameters = list(model.parameters())
    kinds = [[p for p in parameters if isinstance(p, DTensor) == sharded] for sharded in (False, True)]
    optimizers = [step.optimizer(kind) for kind in kinds if kind]

    def run() -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss, _ = step.compute(model, batch, job.device.type)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return run
