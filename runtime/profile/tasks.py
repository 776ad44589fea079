"""The tasks of a profile: collectives by method and group, transfers, ops, and the fixed cost of a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...ir.mesh import Mesh
from ..collectives import METHODS, USUAL
from ..communicator import Communicator
from ..executor import Executor
from ..groups import Axes
from ..hierarchical import HIERARCHICAL, PHASED
from ..plan import Plan, Result, Value
from ..stages import Stage
from .samples import OpSample, arena_for, callable_of

LEAST_BYTES, MOST_BYTES = 64, 64 * 1024 * 1024

_ELEMENT_BYTES = 4
"""The bytes of a float32, the dtype of all exchanged values."""

TRANSFER = "send"
"""A message from one rank to its neighbour along an axis and back, at the same time between all pairs."""

SHIFTED = "shifted"
"""A method of transfers: between the other pairs of neighbours, whose link may differ."""

START = "start"
"""A method that times only the start of a collective: how long it blocks its caller."""

OVERHEAD = "step overhead"

_NEEDED_KINDS, _NEEDED_FAMILIES = (TRANSFER, "all_reduce"), ("contractions",)


@dataclass(frozen=True)
class ProfileTask:
    """
    A measurement to repeat.

    Args:
        name: unique name, also in later runs.
        series: name of the tasks that differ only in size.
        make: function that returns a function to run the task once.
        together: whether ranks communicate in the task, and so must run it equally often.
        needed: whether a cluster requires the task; such tasks come first.
        timed: whether the task's function returns the seconds to record; otherwise its whole run is timed.
    """

    name: str
    series: str
    make: Callable[[], Callable[[], object]]
    together: bool
    needed: bool = False
    timed: bool = False


@dataclass(frozen=True)
class ExchangeTask:
    """
    A collective by some method over some axes, or a transfer.

    Args:
        method: name of the method; empty for the backend's default. Also `START`, or `SHIFTED` for a transfer.
        whole: the bytes of the full (gathered, or not yet scattered) value; in an all-to-all, of a rank's operand.
    """

    kind: str
    method: str
    axes: Axes
    whole: int

    @property
    def series(self) -> str:
        """The name without the size."""
        return f"{self.curve} over {'-'.join(self.axes)}"

    @property
    def name(self) -> str:
        """The name in a journal."""
        return f"{self.series} of {self.whole} bytes"

    @property
    def curve(self) -> str:
        """The name of the kind and method in a cluster file."""
        return f"{self.kind}:{self.method}" if self.method else self.kind


def groups_of(mesh: Mesh) -> tuple[Axes, ...]:
    """Return the axes to measure: each axis with several parts, and all these axes together."""
    axes = tuple(axis.name for axis in mesh.spatial if axis.size > 1)
    return tuple(dict.fromkeys([*((axis,) for axis in axes), axes])) if axes else ()


def sizes_between(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Return sizes that grow by `factor`, from `least` to `most` inclusive."""
    rising = itertools.takewhile(lambda size: size < most, (least * factor**i for i in itertools.count()))
    return (*rising, most)


def exchanges(mesh: Mesh, backend: str, sizes: Sequence[int]) -> list[ExchangeTask]:
    """Return all collectives, by all methods of `backend`, and transfers, in these sizes over the mesh's groups."""
    tasks: list[ExchangeTask] = []
    usual = [(kind, method) for kind in METHODS for method in (*_methods(kind, backend), START)]
    for axes in groups_of(mesh):
        # With more than two axes, a hierarchical method would also need a group of all axes except the last.
        kinds = [*usual, *((kind, HIERARCHICAL) for kind in PHASED if len(axes) == 2)]
        # At least one element per part of a part, because an all-to-all splits a value that is already split.
        least = _ELEMENT_BYTES * mesh.parts(axes) ** 2
        whole = tuple(dict.fromkeys(max(size // least, 1) * least for size in sizes))
        tasks += [ExchangeTask(kind, method, axes, size) for kind, method in kinds for size in whole]
        if len(axes) == 1:
            pairings = ("", SHIFTED) if mesh.parts(axes) > 2 else ("",)
            tasks += [ExchangeTask(TRANSFER, pairing, axes, size) for pairing in pairings for size in sizes]
    return tasks


def _methods(kind: str, backend: str) -> Iterator[str]:
    """Yield the methods of a kind, the backend's default first, as an empty name."""
    usual = USUAL[backend][kind]
    yield ""
    yield from (method for method in METHODS[kind] if method != usual and (method != "direct" or backend == "gloo"))


def exchange_task(exchange: ExchangeTask, comm: Communicator) -> ProfileTask:
    """Return the task that measures an exchange."""
    timed = exchange.method == START
    make = _transfer if exchange.kind == TRANSFER else _start if timed else _collective
    needed = exchange.kind in _NEEDED_KINDS and not exchange.method
    return ProfileTask(
        exchange.name, exchange.series, lambda: make(exchange, comm), together=True, needed=needed, timed=timed
    )


def _operand(exchange: ExchangeTask, comm: Communicator) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the operand of a collective, and the other arguments of the communicator's method."""
    parts, count = comm.mesh.parts(exchange.axes), exchange.whole // _ELEMENT_BYTES
    whole = torch.ones(count, device=comm.device)
    return {
        "all_reduce": (whole, {"donate": True}),
        "all_gather": (whole[: count // parts], {"dim": 0}),
        "reduce_scatter": (whole, {"dim": 0}),
        "all_to_all": (whole.view(-1, parts), {"split_dim": 0, "concat_dim": 1}),
        "broadcast": (whole, {}),
    }[exchange.kind]


def _collective(exchange: ExchangeTask, comm: Communicator) -> Callable[[], object]:
    operand, options = _operand(exchange, comm)
    if exchange.method:
        options["method"] = exchange.method
    return partial(getattr(comm, exchange.kind), operand, axes=exchange.axes, **options)


def _start(exchange: ExchangeTask, comm: Communicator) -> Callable[[], float]:
    """Return a function that runs both halves of a collective and returns the seconds of the first half."""
    operand, options = _operand(exchange, comm)

    def seconds() -> float:
        begun = time.perf_counter()
        token = comm.start(exchange.kind, (operand,), exchange.axes, **options)
        spent = time.perf_counter() - begun
        comm.wait(token)
        return spent

    return seconds


def neighbour(part: int, parts: int, pairing: str) -> int | None:
    """Return the partner of a part in pairs (0, 1), (2, 3), ...; or, if `SHIFTED`, (1, 2), (3, 4), ..."""
    first = int(pairing == SHIFTED)
    other = first + ((part - first) ^ 1)
    return other if first <= other < parts else None


def _transfer(exchange: ExchangeTask, comm: Communicator) -> Callable[[], object]:
    """Return a function that sends a message to the paired neighbour and back, if there is a neighbour."""
    ranks, part = comm.group(exchange.axes).ranks, comm.part(exchange.axes)
    other = neighbour(part, len(ranks), exchange.method)
    if other is None:
        return lambda: None
    message = torch.ones(exchange.whole // _ELEMENT_BYTES, device=comm.device)

    def there_and_back() -> None:
        if part < other:
            dist.send(message, ranks[other])
            dist.recv(message, ranks[other])
        else:
            dist.recv(message, ranks[other])
            dist.send(message, ranks[other])

    return there_and_back


def op_tasks(samples: Sequence[OpSample], device: torch.device) -> list[ProfileTask]:
    """Return the tasks that measure ops."""
    arena = arena_for(samples, device)

    def task(sample: OpSample) -> ProfileTask:
        series = f"{sample.work.key.partition('(')[0]} {sample.work.dtype}"
        needed = sample.work.family in _NEEDED_FAMILIES
        return ProfileTask(sample.work.key, series, lambda: callable_of(sample, arena), together=False, needed=needed)

    return [task(sample) for sample in samples]


def overhead_task(mesh: Mesh, device: torch.device) -> ProfileTask:
    """Return a task that runs a step of an empty program, to measure the fixed cost of a step."""
    batch = Value(role="batch", name="0", shape=(1,), dtype="float32")
    plan = Plan(name="nothing", mesh=mesh, step_spec=None, inputs=(batch,), outputs=(Result(role="loss"),), groups=())

    def make() -> Callable[[], object]:
        executor = Executor((Stage(plan, lambda comm, x: x[0]),), Communicator(mesh, (), device))
        item = (torch.ones(1, device=device),)
        return lambda: executor.step(item).item()

    return ProfileTask(OVERHEAD, OVERHEAD, make, together=False)
