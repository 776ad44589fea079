"""
The description in a generated program: its inputs and outputs, their shardings, and the mesh.

A program is data plus one function. The data are these frozen classes, written as literals at its top.
"""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NoReturn

import torch

from ..ir.mesh import Mesh
from ..ir.sharding import Sharding, local_shape, local_slices, parse_sharding
from .all_ranks import of_all_ranks
from .groups import Axes, world_size
from .pieces import Sizes
from .transfers import Transfer

ValueRole = Literal["param", "state", "buffer", "constant", "step_count", "batch", "learning_rate", "seed"]
ResultRole = Literal["loss", "grad", "metric", "output", "param", "state", "buffer", "step_count"]


class PlanError(RuntimeError):
    """A plan that cannot run in this job; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class SpreadTensor:
    """
    A tensor and its sharding on the mesh.

    Args:
        name: the name in the single-device model, for a parameter, for the parameter of a state or gradient, and for
            a buffer; the key, or the position as a string, of a batch item; the number of the group of
            parameters of a learning rate, if there are several.
        dtype: torch's name of the dtype, such as ``float32``.
        sharding: the sharding in the text form of `ir.sharding`; empty for a replicated value.
    """

    role: str
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    sharding: str = ""

    @cached_property
    def spread(self) -> Sharding:
        """The parsed sharding."""
        return parse_sharding(self.sharding) if self.sharding else Sharding.replicated(len(self.shape))

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        return getattr(torch, self.dtype)

    def slices(self, mesh: Mesh, rank: int) -> tuple[slice, ...]:
        """Return the part that `rank` holds, as one slice per dim."""
        return local_slices(self.shape, self.spread, mesh, rank)

    def local_shape(self, mesh: Mesh, rank: int) -> tuple[int, ...]:
        """Return the shape of the part that `rank` holds."""
        return local_shape(self.shape, self.spread, mesh, rank)

    def partial_axes(self) -> dict[str, Axes]:
        """Return, by reduction, the axes over which the value is still partial."""
        pairs = self.spread.partial
        return {kind.value: tuple(axis for axis, k in pairs if k is kind) for _, kind in pairs}

    def __str__(self) -> str:
        shape = "x".join((*map(str, self.shape), self.dtype))
        return f"{self.role} {self.name!r} ({shape}{', ' if self.sharding else ''}{self.sharding})"


@dataclass(frozen=True)
class Value(SpreadTensor):
    """
    An input of the program.

    Args:
        role: role of the input. ``step_count`` is the number of updates so far, which includes the present update if
            the program does not count updates itself.
        state: name of a state of the optimizer: ``exp_avg`` of the parameter `name`, for example.
        tied: the other names of a tied parameter or shared buffer in the state dict.
        persistent: False for a buffer that is not in the state dict under its own name.
        value: the numbers of a constant, in row-major order; or the initial value of a state's elements, by default 0.
    """

    role: ValueRole
    state: str = ""
    tied: tuple[str, ...] = ()
    persistent: bool = True
    value: Any = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of a parameter or persistent buffer in the state dict of the model; other values have none."""
        if self.role not in ("param", "buffer"):
            return ()
        return (self.name, *self.tied) if self.persistent else self.tied


@dataclass(frozen=True)
class Result(SpreadTensor):
    """
    An output of the program.

    Args:
        role: role of the output. A gradient belongs to the parameter `name`; for an output, `name` is its number among
            the tensors that the model returns.
        updates: index of the input whose next value the output is, with the same sharding, or None for the loss and
            metrics, which are replicated, and for gradients and outputs.
    """

    role: ResultRole
    updates: int | None = None


@dataclass(frozen=True)
class Plan:
    """
    A program's description of its inputs, outputs and mesh; in a pipeline, the description of one stage.

    Args:
        inputs: arguments of the program's function, in order, after the communicator.
        outputs: results of the program's function, in order.
        groups: the axes of its collectives.
        step_spec: source of model and example batch: name of a shipped model, or
            ``package.module:callable`` that returns an object with ``model`` and ``batch``.
        optimizer: the ``kind``, original ``lr`` and other settings of the optimizer, or the settings of several
            ``groups`` of parameters with the names of their ``members``; None for a program that updates nothing.
        ranks: ranks of the job on the mesh, in the order of the mesh; by default the first ranks.
        transfers: transfers between the stages of a pipeline, or at least the transfers of this stage.
    """

    name: str
    mesh: Mesh
    inputs: tuple[Value, ...]
    outputs: tuple[Result, ...]
    groups: tuple[Axes, ...] = ()
    step_spec: str | None = None
    optimizer: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple(range(self.mesh.device_count)))
        if len(self.ranks) != self.mesh.device_count:
            raise ValueError(f"plan {self.name!r}: mesh {self.mesh} does not fit its ranks {list(self.ranks)}")
        for value in (*self.inputs, *self.outputs):
            value.spread.verify(self.mesh, value.shape)
        for result in self.outputs:
            if result.updates is not None and not 0 <= result.updates < len(self.inputs):
                raise ValueError(f"{result} updates input {result.updates} of {len(self.inputs)}")

    @property
    def parameter_groups(self) -> Sequence[Mapping[str, Any]]:
        """The optimizer's settings by group of parameters; empty for a program that updates nothing."""
        return self.optimizer.get("groups", [self.optimizer]) if self.optimizer else []

    def process_groups(self) -> tuple[Axes, ...]:
        """Return the axes of the program's collectives, and the axes along which its values are gathered."""
        values = (*self.inputs, *self.outputs)
        split = [dim.axes for value in values for dim in value.spread.dims if dim.axes]
        partial = [axes for value in values for axes in value.partial_axes().values()]
        return tuple(dict.fromkeys((*self.groups, *split, *partial)))


def part_sizes(value: SpreadTensor, dim: int, mesh: Mesh) -> Sizes:
    """Return the sizes of the parts of one dim of a value, in group order."""
    offsets = value.spread.dims[dim].boundaries(value.shape[dim], mesh)
    return tuple(b - a for a, b in pairwise(offsets))


def plan_hash(source_text: str, plans: Sequence[Plan]) -> str:
    """Return a digest of everything that must be equal on all ranks: program text, plans, torch and Python."""
    parts = (source_text, *map(repr, plans), torch.__version__, platform.python_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def verify_world(plans: Sequence[Plan]) -> None:
    """
    Check that the job has as many ranks as the plans of its stages, and each rank belongs to one stage.

    Raises:
        PlanError: the ranks differ; the message gives the right command to start the job.
    """
    world = world_size()
    expected = sorted(rank for plan in plans for rank in plan.ranks)
    if expected == list(range(world)):
        return
    meshes = ", ".join(f"{plan.mesh} on {list(plan.ranks)}" if len(plans) > 1 else str(plan.mesh) for plan in plans)
    raise PlanError(
        f"plan {plans[0].name!r} is for {len(expected)} ranks on mesh {meshes}, launched on {world}:"
        f" start with torchrun --nproc-per-node {len(expected)}"
    )


def verify_same_plan(digest: str) -> None:
    """
    Compare the program's digest over all ranks of the job; every rank must call this before the first step.

    Raises:
        PlanError: on every rank, if any digest differs; the message lists the programs of the ranks.
    """
    mine = (digest, torch.__version__, platform.python_version(), socket.gethostname())
    everyone = of_all_ranks(mine, "the comparison of programs")
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for rank, (other, torch_version, python, _) in enumerate(everyone):
        kinds.setdefault((other, torch_version, python), []).append(rank)
    if len(kinds) > 1:
        details = "; ".join(
            f"ranks {ranks} (on {', '.join(sorted({everyone[r][3] for r in ranks}))}) have plan {other[:12]} "
            f"with torch {torch_version} and Python {python}"
            for (other, torch_version, python), ranks in kinds.items()
        )
        raise PlanError(
            f"the ranks run different programs: {details}; start all ranks from the same file, with the same versions"
        )


@dataclass(frozen=True)
class LocalShard:
    """
    This rank's part of a value, which may be split in ways that a `DTensor` cannot represent.

    Args:
        local: the part, in the step's own memory; empty if the rank holds nothing.
        shape: shape of the full tensor.
        offsets: start of the part in the full tensor, by dim.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices of the full tensor that equal `local`: ``full[shard.slices]``."""
        sizes = zip(self.offsets, self.local.shape, strict=True)
        return tuple(slice(start, start + size) for start, size in sizes)

    def __create_write_items__(self, name: str, _: object) -> NoReturn:
        """Raise a PlanError: torch.distributed.checkpoint calls this to save, and would save only one rank's part."""
        raise PlanError(
            f"{name!r} is split unevenly over the ranks, which torch.distributed.checkpoint cannot save: use "
            "step.save(folder), which can, or save step.state_dict(), which has full tensors"
        )
