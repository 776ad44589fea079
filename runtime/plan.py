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
from typing import Any, Literal

import torch
import torch.distributed as dist

from ..ir.mesh import Mesh
from ..ir.sharding import Sharding, local_shape, local_slices, parse_sharding
from .faults import ACTIVITY
from .groups import Axes
from .pieces import Sizes
from .transfers import Transfer

ValueRole = Literal["param", "state", "buffer", "constant", "step_count", "batch", "learning_rate", "seed"]
ResultRole = Literal["loss", "grad", "metric", "output", "param", "state", "buffer", "step_count"]


class PlanError(RuntimeError):
    """A plan that cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class SpreadTensor:
    """
    A tensor and how the mesh holds it.

    Args:
        name: the name in the single-device model of a parameter, of a state's or gradient's parameter, or
            of a buffer; the key, or the position as a string, of an item of the batch; of a learning rate the
            number of its group of parameters, where there are several.
        shape: the global shape.
        dtype: torch's name of it, such as ``float32``.
        sharding: in the text form of `ir.sharding`; empty for a replicated value.
    """

    role: str
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    sharding: str = ""

    @cached_property
    def spread(self) -> Sharding:
        """The sharding, read."""
        return parse_sharding(self.sharding) if self.sharding else Sharding.replicated(len(self.shape))

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return getattr(torch, self.dtype)

    def slices(self, mesh: Mesh, rank: int) -> tuple[slice, ...]:
        """The part that `rank` holds, as one slice per dim."""
        return local_slices(self.shape, self.spread, mesh, rank)

    def local_shape(self, mesh: Mesh, rank: int) -> tuple[int, ...]:
        """The shape of the part that `rank` holds."""
        return local_shape(self.shape, self.spread, mesh, rank)

    def partial_axes(self) -> dict[str, Axes]:
        """By reduction, the axes over which the value is still to be reduced."""
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
        role: what it is. ``step_count`` is the number of updates so far, or, where the program does not count
            them itself, with this one.
        state: for a state of the optimizer, which: ``exp_avg`` of the parameter `name`, for example.
        tied: the other names of a tied parameter or shared buffer in the state dict.
        persistent: False for a buffer that is no part of the state dict by its own name.
        value: the numbers of a constant, in row-major order; what each element of a state is at first, zero by default.
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
        role: what it is; a gradient is that of the parameter `name`, an output the tensor of that number of those which
            the model returns.
        updates: the input that it is the next value of, counted from 0, and spread like; None for the loss and
            metrics, which are replicated, and for gradients and outputs.
    """

    role: ResultRole
    updates: int | None = None


@dataclass(frozen=True)
class Plan:
    """
    A program's description of itself; in a pipeline, that of one stage.

    Args:
        name: of the model, for messages.
        mesh: places the ranks.
        inputs: in the order of the arguments of the program's function, after the communicator.
        outputs: in the order of its results.
        groups: the axes that its collectives run along.
        step_spec: where model and example batch come from: a shipped model's name, or
            ``package.module:callable`` that returns an object with ``model`` and ``batch``.
        optimizer: its ``kind``, the ``lr`` that it was made with, and its other settings, or these of several
            ``groups`` of parameters, and the names of their ``members``; None where the program updates nothing.
        versions: of the software that planned it.
        ranks: the ranks of the job that the mesh has, in the order of its own; by default the first ones.
        transfers: between the stages of a pipeline, at least those in which this one takes part.
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
            raise ValueError(f"plan {self.name!r} puts mesh {self.mesh} on the ranks {list(self.ranks)}")
        for value in (*self.inputs, *self.outputs):
            value.spread.verify(self.mesh, value.shape)
        for result in self.outputs:
            if result.updates is not None and not 0 <= result.updates < len(self.inputs):
                raise ValueError(f"{result} updates input {result.updates} of {len(self.inputs)}")

    @property
    def parameter_groups(self) -> Sequence[Mapping[str, Any]]:
        """The settings of the optimizer by group of parameters; none where the program updates nothing."""
        return self.optimizer.get("groups", [self.optimizer]) if self.optimizer else []

    def process_groups(self) -> tuple[Axes, ...]:
        """The axes that its collectives run along, and those that its values are gathered along."""
        values = (*self.inputs, *self.outputs)
        split = [dim.axes for value in values for dim in value.spread.dims if dim.axes]
        partial = [axes for value in values for axes in value.partial_axes().values()]
        return tuple(dict.fromkeys((*self.groups, *split, *partial)))


def part_sizes(value: SpreadTensor, dim: int, mesh: Mesh) -> Sizes:
    """The sizes of the parts of one dim of a value, in group order."""
    offsets = value.spread.dims[dim].boundaries(value.shape[dim], mesh)
    return tuple(b - a for a, b in pairwise(offsets))


def plan_hash(source_text: str, plans: Sequence[Plan]) -> str:
    """A digest of all that the ranks must have in common: the program's text, its plans, torch and Python."""
    parts = (source_text, *map(repr, plans), torch.__version__, platform.python_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def verify_world(plans: Sequence[Plan]) -> None:
    """
    Check that the job has as many ranks as the plans of its stages, each in one stage.

    Raises:
        PlanError: it has not; the message gives the command that starts it right.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    wanted = sorted(rank for plan in plans for rank in plan.ranks)
    if wanted == list(range(world)):
        return
    meshes = ", ".join(f"{plan.mesh} on {list(plan.ranks)}" if len(plans) > 1 else str(plan.mesh) for plan in plans)
    raise PlanError(
        f"plan {plans[0].name!r} is for {len(wanted)} ranks on mesh {meshes}, launched on {world}:"
        f" start with torchrun --nproc-per-node {len(wanted)}"
    )


def verify_same_plan(digest: str) -> None:
    """
    Compare the program's digest over all ranks of the job; every rank must call this before the first step.

    Raises:
        PlanError: on every rank, if any differs; the message names which.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    if world == 1:
        return
    mine = (digest, torch.__version__, platform.python_version(), socket.gethostname())
    everyone: list[Any] = [None] * world
    ACTIVITY.wait("the comparison of programs", lambda: dist.all_gather_object(everyone, mine))
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
