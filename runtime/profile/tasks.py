"""The tasks of a profile: collectives by method and group, transfers, ops, and the fixed cost of a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
"""Of float32, which is what travels."""

TRANSFER = "send"
"""A message from one rank to its neighbour along an axis and back, at the same time between all pairs."""

SHIFTED = "shifted"
"""Instead of a transfer's method: the other pairs of neighbours, whose link may differ."""

START = "start"
"""In the place of a method: the half of a collective that begins it, for so long as it keeps its caller."""

OVERHEAD = "step overhead"

_NEEDED_KINDS, _NEEDED_FAMILIES = (TRANSFER, "all_reduce"), ("contractions",)


@dataclass(frozen=True)
class ProfileTask:
    """
    One thing to measure.

    Args:
        name: unique, in this run and in later ones.
        series: those that differ from it in size alone.
        make: gives the function that does it once.
        together: whether ranks communicate in it, and so must do it equally often.
        needed: whether there is no cluster without it: such tasks come first.
        timed: whether what does it gives the seconds that count; else all of its time does.
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
        method: empty for the backend's usual one; or `START`; of a transfer, `SHIFTED`.
        whole: the bytes of the full (gathered, or not yet scattered) value; of an all-to-all, of a rank's operand.
    """

    kind: str
    method: str
    axes: Axes
    whole: int

    @property
    def series(self) -> str:
        """Its name without the size."""
        return f"{self.curve} over {'-'.join(self.axes)}"

    @property
    def name(self) -> str:
        """Its name in a journal."""
        return f"{self.series} of {self.whole} bytes"

    @property
    def curve(self) -> str:
        """What a cluster file calls its kind and method."""
        return f"{self.kind}:{self.method}" if self.method else self.kind


def groups_of(mesh: Mesh) -> tuple[Axes, ...]:
    """The axes that are measured: each that has several parts, and all of them together."""
    axes = tuple(axis.name for axis in mesh.spatial if axis.size > 1)
    return tuple(dict.fromkeys([*((axis,) for axis in axes), axes])) if axes else ()


def sizes_between(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Sizes that grow by `factor`, from `least` to `most`, both among them."""
    rising = itertools.takewhile(lambda size: size < most, (least * factor**i for i in itertools.count()))
    return (*rising, most)


def exchanges(mesh: Mesh, backend: str, sizes: Sequence[int]) -> list[ExchangeTask]:
    """Every collective, by every method that `backend` has, and transfers, at these sizes over the mesh's groups."""
    found: list[ExchangeTask] = []
    usual = [(kind, method) for kind in METHODS for method in (*_methods(kind, backend), START)]
    for axes in groups_of(mesh):
        # Of more axes, those without the last would have to be a group, too.
        kinds = [*usual, *((kind, HIERARCHICAL) for kind in PHASED if len(axes) == 2)]
        # A part of a part at least, for an all-to-all splits what is split already.
        least = _ELEMENT_BYTES * mesh.parts(axes) ** 2
        whole = tuple(dict.fromkeys(max(size // least, 1) * least for size in sizes))
        found += [ExchangeTask(kind, method, axes, size) for kind, method in kinds for size in whole]
        if len(axes) == 1:
            pairings = ("", SHIFTED) if mesh.parts(axes) > 2 else ("",)
            found += [ExchangeTask(TRANSFER, pairing, axes, size) for pairing in pairings for size in sizes]
    return found


def _methods(kind: str, backend: str) -> Iterator[str]:
    """Those of a kind, the usual one first and without its name."""
    usual = USUAL[backend][kind]
    yield ""
    yield from (method for method in METHODS[kind] if method != usual and (method != "direct" or backend == "gloo"))


def exchange_task(exchange: ExchangeTask, comm: Communicator) -> ProfileTask:
    """The task of measuring an exchange."""
    timed = exchange.method == START
    make = _transfer if exchange.kind == TRANSFER else _start if timed else _collective
    needed = exchange.kind in _NEEDED_KINDS and not exchange.method
    return ProfileTask(
        exchange.name, exchange.series, lambda: make(exchange, comm), together=True, needed=needed, timed=timed
    )


def _collective(exchange: ExchangeTask, comm: Communicator) -> Callable[[], object]:
    axes, parts = exchange.axes, comm.mesh.parts(exchange.axes)
    method = exchange.method or None
    count = exchange.whole // _ELEMENT_BYTES
    whole = torch.ones(count, device=comm.device)
    match exchange.kind:
        case "all_reduce":
            return lambda: comm.all_reduce(whole, axes, donate=True, method=method)
        case "all_gather":
            return lambda: comm.all_gather(whole[: count // parts], 0, axes, method=method)
        case "reduce_scatter":
            return lambda: comm.reduce_scatter(whole, 0, axes, method=method)
        case "all_to_all":
            square = whole.view(-1, parts)
            return lambda: comm.all_to_all(square, 0, 1, axes, method=method)
        case _:
            return lambda: comm.broadcast(whole, axes)


def _start(exchange: ExchangeTask, comm: Communicator) -> Callable[[], float]:
    """Both halves of a collective, one after the other; it gives the seconds of the first."""
    axes, parts = exchange.axes, comm.mesh.parts(exchange.axes)
    count = exchange.whole // _ELEMENT_BYTES
    whole = torch.ones(count, device=comm.device)
    operand, options = {
        "all_reduce": (whole, {"donate": True}),
        "all_gather": (whole[: count // parts], {"dim": 0}),
        "reduce_scatter": (whole, {"dim": 0}),
        "all_to_all": (whole.view(-1, parts), {"split_dim": 0, "concat_dim": 1}),
        "broadcast": (whole, {}),
    }[exchange.kind]

    def seconds() -> float:
        begun = time.perf_counter()
        token = comm.start(exchange.kind, (operand,), axes, **options)
        spent = time.perf_counter() - begun
        comm.wait(token)
        return spent

    return seconds


def neighbour(part: int, parts: int, pairing: str) -> int | None:
    """The part that a part exchanges messages with: of 0 and 1, 2 and 3; or, if `SHIFTED`, of 1 and 2, 3 and 4."""
    first = int(pairing == SHIFTED)
    other = first + ((part - first) ^ 1)
    return other if first <= other < parts else None


def _transfer(exchange: ExchangeTask, comm: Communicator) -> Callable[[], object]:
    """There and back again, between neighbours in pairs; one that has none waits for nobody."""
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
    """The tasks of measuring ops."""
    arena = arena_for(samples, device)

    def task(sample: OpSample) -> ProfileTask:
        series = f"{sample.work.key.partition('(')[0]} {sample.work.dtype}"
        needed = sample.work.family in _NEEDED_FAMILIES
        return ProfileTask(sample.work.key, series, lambda: callable_of(sample, arena), together=False, needed=needed)

    return [task(sample) for sample in samples]


def overhead_task(mesh: Mesh, device: torch.device) -> ProfileTask:
    """A step of a program that does nothing: what is left is what every step takes."""
    batch = Value(role="batch", name="0", shape=(1,), dtype="float32")
    plan = Plan(name="nothing", mesh=mesh, step_spec=None, inputs=(batch,), outputs=(Result(role="loss"),), groups=())

    def make() -> Callable[[], object]:
        executor = Executor((Stage(plan, lambda comm, x: x[0]),), Communicator(mesh, (), device))
        item = (torch.ones(1, device=device),)
        return lambda: executor.step(item).item()

    return ProfileTask(OVERHEAD, OVERHEAD, make, together=False)
