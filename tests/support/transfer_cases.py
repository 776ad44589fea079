"""Transfers between two stages of four ranks, their expected values, and functions that run them on each rank."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist

from shardwright import runtime as rt
from shardwright.ir.unit_tasks import Task
from shardwright.runtime.groups import RankLayout
from shardwright.runtime.stages import Stage, connect

MICRO = 3
SHARDINGS = {
    "whole": "",
    "rows": '[{"gpu"}, {}]',
    "columns": '[{}, {"gpu"}]',
    "uneven": '[{"gpu"}, {}], offsets={0: UNEVEN}',
    "empty": '[{"gpu"}, {}], offsets={0: EMPTY}',
    "parts": '[{"micro"}, {}]',
    "rows of parts": '[{"micro", "gpu"}, {}]',
}
UNEVEN = {1: [0, 30], 2: [0, 7, 30], 3: [0, 3, 22, 30]}
EMPTY = {1: [0, 30], 2: [0, 0, 30], 3: [0, 13, 13, 30]}
SHAPE = (30, 6)
LONG = (30, 60_000)
"""A shape so long that forwarding sends it in many chunks."""


@dataclass(frozen=True)
class Case:
    """A transfer from the first `senders` of four ranks to the others, between two shardings."""

    senders: int
    source: str
    target: str
    shape: tuple[int, ...] = SHAPE
    dtype: str = "float32"
    reverse: bool = False

    def __str__(self) -> str:
        more = f" {self.dtype}" * (self.dtype != "float32") + " long" * (self.shape == LONG)
        return f"{self.senders} to {4 - self.senders}{' back' * self.reverse}, {self.source} to {self.target}{more}"

    @property
    def timed(self) -> bool:
        """Return whether the value is sent once per part."""
        return "parts" in self.source

    def transfer(self) -> rt.Transfer:
        """Return the transfer, with tasks from a separate, plain implementation."""
        low, high = tuple(range(self.senders)), tuple(range(self.senders, 4))
        senders, receivers = (high, low) if self.reverse else (low, high)
        source, target = _holders(senders, self.source), _holders(receivers, self.target)
        parts = range(MICRO if self.timed else 1)
        tasks = tuple(task for part in parts for task in _tasks(self.shape, source, target, part))
        return rt.Transfer(str(self), self.shape, self.dtype, source, target, tasks)


def _holders(ranks: tuple[int, ...], spread: str) -> rt.Holders:
    text = SHARDINGS[spread].replace("UNEVEN", str(UNEVEN[len(ranks)])).replace("EMPTY", str(EMPTY[len(ranks)]))
    return rt.Holders(rt.Mesh.of(gpu=len(ranks)).over(micro=MICRO), ranks, text)


def _tasks(shape: tuple[int, ...], source: rt.Holders, target: rt.Holders, part: int) -> Iterator[Task]:
    """Yield a task per distinct slice: its last holder sends the whole slice to all ranks that need some of it."""
    owners = {_numbers(source.slices(shape, rank, part)): rank for rank in source.ranks}
    for number, (held, sender) in enumerate(owners.items()):
        wants = [rank for rank in target.ranks if _overlap(held, _numbers(target.slices(shape, rank, part)))]
        # Alternate the direction of the chains of receivers, so that they cross.
        yield Task(part, held, sender, tuple(wants if number % 2 else reversed(wants)))


def _numbers(slices: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((each.start, each.stop) for each in slices)


def _overlap(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


def cases() -> list[Case]:
    """Return all cases."""
    once = ("whole", "rows", "columns", "uneven", "empty")
    found = [
        Case(senders, source, target, reverse=back)
        for senders, source, target, back in product((1, 2, 3), once, once, (False, True))
    ]
    timed = ("parts", "rows of parts")
    found += [
        Case(senders, source, target, reverse=back)
        for senders, source, target, back in product((1, 2), timed, timed, (False, True))
    ]
    found += [Case(2, "rows", "columns", dtype=dtype) for dtype in ("float64", "bfloat16", "int64", "bool")]
    return [*found, Case(1, "whole", "whole", LONG), Case(2, "rows", "whole", LONG), Case(3, "empty", "whole", LONG)]


def connected(transfers: list[rt.Transfer]) -> rt.Communicator:
    """Return the communicator of a job of two stages; the transfers do not depend on the meshes of the stages."""
    mesh = rt.Mesh.of(gpu=2)
    plans = [rt.Plan("test", mesh, (), (), ranks=ranks, transfers=tuple(transfers)) for ranks in ((0, 1), (2, 3))]
    return connect([Stage(plan, print) for plan in plans])


def whole(case: Case) -> torch.Tensor:
    """Return the value of a case, with distinct elements if the dtype has that many values."""
    count = case.shape[0] * case.shape[1]
    return torch.arange(count).reshape(case.shape).to(getattr(torch, case.dtype))


def _send(comm: rt.Communicator, transfer: rt.Transfer, part: int, value: torch.Tensor) -> None:
    me = dist.get_rank()
    if me in transfer.source.ranks:
        comm.send(transfer.label, part, value[transfer.source.slices(transfer.shape, me, part)].clone())


def try_all() -> dict[str, str]:
    """Run on each rank: return the problem of every case, an empty text if it passes."""
    cases_by_name = {str(case): case for case in cases()}
    transfers = {name: case.transfer() for name, case in cases_by_name.items()}
    comm, problems = connected(list(transfers.values())), dict.fromkeys(cases_by_name, "")
    for name, transfer in transfers.items():
        try:
            problems[name] = "; ".join(_problems(comm, transfer, whole(cases_by_name[name])))
            comm.finish_transfers()
        except Exception:
            problems[name] = traceback.format_exc()
    return problems


def _problems(comm: rt.Communicator, transfer: rt.Transfer, value: torch.Tensor) -> Iterator[str]:
    me = dist.get_rank()
    for part in sorted({task.part for task in transfer.tasks}):
        _send(comm, transfer, part, value)
        if me in transfer.target.ranks:
            got = comm.arrived(comm.receive(transfer.label, part))
            if not torch.equal(got, value[transfer.target.slices(transfer.shape, me, part)]):
                yield f"part {part}: got {got.flatten()[:20].tolist()}"


def many_at_once() -> list[str]:
    """
    Start all transfers at once, receives and sends in different orders on every rank; return the wrong ones.
    """
    selected = [case for case in cases() if not case.timed]
    transfers = [case.transfer() for case in selected]
    comm, me = connected(transfers), dist.get_rank()
    order = torch.randperm(len(selected), generator=torch.Generator().manual_seed(me)).tolist()
    coming = {i: comm.receive(transfers[i].label, 0) for i in order if me in transfers[i].target.ranks}
    for i in reversed(order):
        _send(comm, transfers[i], 0, whole(selected[i]))
    wrong: list[str] = []
    for i in sorted(coming, key=lambda i: (i * 7 + me) % len(selected)):
        expected = whole(selected[i])[transfers[i].target.slices(transfers[i].shape, me, 0)]
        if not torch.equal(comm.arrived(coming[i]), expected):
            wrong.append(str(selected[i]))
    comm.finish_transfers()
    return wrong


def waits_in_circles() -> bool:
    """
    Check that forwarding does not wait for the program: a rank awaits a value that depends on one it must forward.

    Rank 1 begins to receive `a`, then `b`, and awaits `a`. Rank 3 sends `a` only once it has `b`, which rank 1
    forwards to it.
    """
    alone = rt.Mesh.of(gpu=1)
    three = rt.Holders(rt.Mesh.of(gpu=3), (1, 2, 3))
    box = tuple((0, size) for size in SHAPE)
    a = rt.Transfer("a", SHAPE, "float32", rt.Holders(alone, (3,)), rt.Holders(alone, (1,)), (Task(0, box, 3, (1,)),))
    b = rt.Transfer("b", SHAPE, "float32", rt.Holders(alone, (0,)), three, (Task(0, box, 0, (1, 2, 3)),))
    comm, me, value = connected([a, b]), dist.get_rank(), whole(Case(1, "whole", "whole"))
    if me == 0:
        comm.send("b", 0, value)
        return True
    first = comm.receive("a", 0) if me == 1 else None
    second = comm.receive("b", 0)
    right = True
    if first is not None:
        right = torch.equal(comm.arrived(first), value)
    right &= torch.equal(comm.arrived(second), value)
    if me == 3:
        comm.send("a", 0, value)
    comm.finish_transfers()
    return right


def refused() -> list[str]:
    """Return the errors of invalid calls on ranks 0 and 1; the other ranks return an empty list."""
    if dist.get_rank() > 1:
        connected([Case(2, "rows", "rows").transfer()])
        return []
    case = Case(2, "rows", "rows")
    comm = connected([case.transfer()])
    mesh = rt.Mesh.of(gpu=2)
    calls = [
        lambda: comm.receive("nothing", 0),
        lambda: comm.receive(str(case), 0),
        lambda: comm.send(str(case), 0, torch.zeros(3, 3)),
        lambda: rt.Communicator(rt.Mesh.of(gpu=4), ()).receive("h", 0),
        lambda: rt.Communicator(mesh, ()),
        lambda: rt.Communicator(mesh, (), job=[RankLayout(mesh, (0, 1, 2), ())]),
    ]
    said: list[str] = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return said
