"""Programs with layers as functions or inlined, run op by op."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from _memory_meter import MemoryMeter
from emitted import values_by_stage
from rank_threads import Meeting, ThreadCommunicator
from xdsl.dialects.builtin import ModuleOp

from shardwright.lowering.codegen.emit_python import emit_python
from shardwright.lowering.codegen.load_program import load_text
from shardwright.lowering.interpreter.interpreter import find_function
from shardwright.lowering.interpreter.random_inputs import random_inputs

_TICK = re.compile(r" *comm\.tick\(\d*\)\n")


def emitted(module: ModuleOp) -> str:
    """Return the program of a module; equal layers are calls of a function."""
    return emit_python(module, name="layers", step_spec=None, versions={})


def written_out(module: ModuleOp) -> str:
    """Return the same program with layers inlined: a program with ticks has no such functions."""
    return _TICK.sub("", emit_python(module, name="layers", step_spec=None, versions={}, ticks={}))


class Trace(MemoryMeter):
    """A recorder of the ops of a rank in order, each with the bytes that the rank holds after it."""

    def __init__(self, lent: Sequence[torch.Tensor]) -> None:
        super().__init__(lent=lent)
        self.events: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op and note it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.events.append((str(func), self.bytes))
        return result


class LonelyCommunicator(ThreadCommunicator):
    """A communicator of a single rank that assumes equal values on the others: shapes and memory are realistic."""

    def _parts(self, kind: str, x: torch.Tensor, axes: tuple[str, ...]) -> list[torch.Tensor]:
        return [x.clone() for _ in range(self.mesh.parts(axes))]

    def all_gather(
        self, x: torch.Tensor, dim: int, axes: tuple[str, ...], sizes: Any = None, method: Any = None
    ) -> torch.Tensor:
        if sizes is None or self.mesh.parts(axes) == 1:
            return super().all_gather(x, dim, axes, sizes, method)
        return torch.cat([resized(x, dim, size) for size in sizes], dim)

    def all_to_all(
        self,
        x: torch.Tensor,
        split_dim: int,
        concat_dim: int,
        axes: tuple[str, ...],
        split_sizes: Any = None,
        concat_sizes: Any = None,
    ) -> torch.Tensor:
        if concat_sizes is None or self.mesh.parts(axes) == 1:
            return super().all_to_all(x, split_dim, concat_dim, axes, split_sizes, concat_sizes)
        mine = x if split_dim == concat_dim else self._cut(x, split_dim, axes, split_sizes)
        return torch.cat([resized(mine, concat_dim, size) for size in concat_sizes], concat_dim)


class LonelyStageCommunicator(LonelyCommunicator):
    """One rank alone in a job of stages: the values that others send it are made up, the same ones in each run."""

    def __init__(self, meeting: Meeting, rank: int, job_rank: int, transfers: Sequence[Any]) -> None:
        super().__init__(meeting, rank)
        self.job_rank, self.transfers = job_rank, {transfer.label: transfer for transfer in transfers}

    def send(self, label: str, part: int, value: torch.Tensor) -> None:
        """Do nothing: the runtime frees what has been sent."""

    def receive(self, label: str, part: int) -> tuple[str, int]:
        """Return the transfer and the part, for which memory is taken on arrival."""
        return label, part

    def arrived(self, coming: tuple[str, int]) -> torch.Tensor:
        """Return the rank's shard of the value, filled with one number."""
        label, part = coming
        transfer = self.transfers[label]
        mine = transfer.target.slices(transfer.shape, self.job_rank, part)
        shape = [each.stop - each.start for each in mine]
        return torch.full(shape, (len(label) + part) % 7, dtype=getattr(torch, transfer.dtype))


def resized(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Truncate a tensor along a dim to `size`, or pad it with zeros."""
    wanted = [size if at == dim % x.dim() else each for at, each in enumerate(x.shape)]
    copied = x.narrow(dim, 0, min(size, x.shape[dim]))
    result = x.new_zeros(wanted)
    result.narrow(dim, 0, copied.shape[dim]).copy_(copied)
    return result


def traced(module: ModuleOp, text: str, rank: int, **replaced: Any) -> tuple[list[tuple[str, int]], list[torch.Tensor]]:
    """
    Run a rank of a program of one stage; return its trace and results. The inputs are random with a fixed seed.

    Args:
        replaced: values for global names of the program.
    """
    [(plan, step)] = load_text(text, "<traced>")
    step.__globals__.update(replaced)
    inputs = random_inputs(find_function(module))
    comm = LonelyCommunicator(Meeting(plan.mesh), rank)
    mine = [whole[value.slices(plan.mesh, rank)].clone() for value, whole in zip(plan.inputs, inputs, strict=True)]
    with torch.no_grad(), Trace(mine) as trace:
        results = step(comm, *mine)
    return trace.events, list(results)


def traced_stages(module: ModuleOp, text: str) -> list[tuple[list[tuple[str, int]], list[torch.Tensor]]]:
    """The trace of the first rank of each stage, and its results; the inputs are always the same."""
    func = find_function(module)
    inputs, traces = random_inputs(func), list[tuple[list[tuple[str, int]], list[torch.Tensor]]]()
    for (plan, step), indices in zip(load_text(text, "<traced>"), values_by_stage(func)[0], strict=True):
        comm = LonelyStageCommunicator(Meeting(plan.mesh), 0, plan.ranks[0], plan.transfers)
        pairs = zip(plan.inputs, (inputs[index] for index in indices), strict=True)
        mine = [whole[value.slices(plan.mesh, 0)].clone() for value, whole in pairs]
        with torch.no_grad(), Trace(mine) as trace:
            results = step(comm, *mine)
        traces.append((trace.events, list(results)))
    return traces
