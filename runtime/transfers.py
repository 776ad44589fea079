"""
Transfers: values that go from the ranks of one stage of a pipeline to those of another.

A transfer is a list of unit tasks. In each the sender's slice travels along the chain of receivers in chunks, every
receiver handing a chunk on as soon as it has it (the pipelined broadcast of cross-mesh 3.1), so that one copy leaves
the sender and the time hardly grows with the number of receivers. With one receiver it is a plain send.

Sending and beginning to receive wait for nobody. Memory to receive in is posted at once, and what is handed on moves
by itself: in a thread of its own on the CPU, on streams on CUDA. So ranks may begin and await transfers in any order
without waiting in a circle, unless the values themselves depend on each other so. On gloo each message has a number.
NCCL has none: there two ranks must begin the transfers from the one to the other in one order. An operation of NCCL
holds up all that comes after it on its communicator, so each pair of ranks has one for each direction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import pairwise

import torch
import torch.distributed as dist

from ..ir.mesh import Mesh
from ..ir.sharding import Sharding, parse_sharding
from ..ir.unit_tasks import Grid, Task, chunk_count
from .faults import ACTIVITY
from .groups import TIMEOUT
from .requests import Waitable

_Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Holders:
    """
    The ranks that hold a value, and how they share it.

    Args:
        mesh: of their stage, with its axes of time.
        ranks: of the job, in the order of the mesh's own.
        sharding: in the text form of `ir.sharding`; empty for a replicated value.
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    sharding: str = ""

    @cached_property
    def _grid(self) -> Grid:
        return Grid.of(self.mesh, self.ranks)

    def slices(self, shape: Sequence[int], rank: int, part: int) -> _Slices:
        """What `rank`, of the job, holds of a value of global `shape` at the part `part`."""
        spread = parse_sharding(self.sharding) if self.sharding else Sharding.replicated(len(shape))
        return self._grid.slices(shape, spread, rank, part)


@dataclass(frozen=True)
class Transfer:
    """
    A value that goes from one stage to another, once per part of the axes of time.

    Args:
        label: its name; a job has one transfer of a name.
        shape: the global shape, that of all parts together.
        dtype: torch's name of it, such as ``float32``.
        source: who has it.
        target: who wants it.
        tasks: who sends what to whom, in the order in which ranks begin them.
    """

    label: str
    shape: tuple[int, ...]
    dtype: str
    source: Holders
    target: Holders
    tasks: tuple[Task, ...]

    def tasks_of(self, part: int, rank: int) -> list[tuple[int, Task]]:
        """The tasks at a part in which `rank` has something to do, each with its number in the transfer."""
        return [
            (number, task)
            for number, task in enumerate(self.tasks)
            if task.part == part and task.elements and rank in (task.sender, *task.receivers)
        ]


@dataclass(frozen=True)
class _LineEnd:
    """One end of a line between two ranks: the place of the rank at the other in the group of that direction."""

    group: dist.ProcessGroup
    place: int

    def send(self, chunk: torch.Tensor, tag: int) -> Waitable:
        return self.group.send([chunk], self.place, tag)

    def receive(self, chunk: torch.Tensor, tag: int) -> Waitable:
        return self.group.recv([chunk], self.place, tag)


class Lines:
    """
    What messages between any two ranks travel on: a group for those to higher ranks, and one for those to lower.

    Every rank of the job must make them, all at the same point among the groups of all ranks.
    """

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        self.rank = dist.get_rank()
        self._timeout = timeout
        self._of_all = self._both(list(range(dist.get_world_size())))
        self._of_pairs: dict[tuple[int, int], tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}

    def _both(self, ranks: list[int]) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """A group for each direction; placeholders on a rank that is none of them."""
        lines = (lambda: dist.new_group(ranks, timeout=self._timeout) for _ in range(2))
        up, down = (ACTIVITY.wait("a line between ranks", line) for line in lines)
        return up, down  # pyright: ignore[reportReturnType]

    def open(self, pairs: Iterable[tuple[int, int]]) -> None:
        """
        Give pairs of ranks groups of their own. Every rank must call this with the same pairs of sender and receiver.
        """
        for one, other in sorted({(min(pair), max(pair)) for pair in pairs} - self._of_pairs.keys()):
            self._of_pairs[one, other] = self._both([one, other])

    def end(self, sender: int, receiver: int) -> _LineEnd:
        """This rank's end of the line from `sender` to `receiver`, of which it is one."""
        other = receiver if self.rank == sender else sender
        pair = min(sender, receiver), max(sender, receiver)
        if pair not in self._of_pairs:
            return _LineEnd(self._of_all[sender > receiver], other)
        return _LineEnd(self._of_pairs[pair][sender > receiver], pair.index(other))


class _Hop:
    """
    One task at this rank: chunks that come from the rank before it, if any, and go to the one after it, if any.

    What is to come is posted, and what this rank has itself is sent, when the hop is made.

    Args:
        block: contiguous; what is sent, or where it arrives.
    """

    def __init__(self, task: Task, tag: int, block: torch.Tensor, lines: Lines) -> None:
        chain, me = (task.sender, *task.receivers), lines.rank
        at = chain.index(me)
        self._chunks, self._tag = block.view(-1).tensor_split(chunk_count(task, block.nbytes)), tag
        self._after = lines.end(me, chain[at + 1]) if at + 1 < len(chain) else None
        before = lines.end(chain[at - 1], me) if at else None
        self.forwards = before is not None and self._after is not None
        self._coming = [before.receive(chunk, tag) for chunk in self._chunks] if before is not None else []
        self.sent = [self._send(chunk) for chunk in self._chunks] if before is None else list[Waitable]()

    def _send(self, chunk: torch.Tensor) -> Waitable:
        assert self._after is not None
        return self._after.send(chunk, self._tag)

    def forward(self) -> None:
        """Hand each chunk on as soon as it is here."""
        for work, chunk in zip(self._coming, self._chunks, strict=True):
            work.wait()
            self.sent.append(self._send(chunk))

    def arrive(self) -> None:
        """Wait until all chunks are here."""
        for work in self._coming:
            work.wait()

    def finish(self) -> None:
        """Wait until all that is sent is."""
        for work in self.sent:
            work.wait()


class _Carrier(threading.Thread):
    """Hands on what one transfer has this rank hand on; ends, and lets go of the memory, when all that is sent is."""

    def __init__(self, hops: Sequence[_Hop]) -> None:
        super().__init__(name="shardwright transfer", daemon=True)
        self._hops, self._here = list(hops), threading.Event()
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Forward, then wait for what has been sent."""
        try:
            for hop in self._hops:
                if hop.forwards:
                    hop.forward()
            self._here.set()
            for hop in self._hops:
                hop.finish()
        except BaseException as error:
            self._error = error
        finally:
            self._hops.clear()
            self._here.set()

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for or to report."""
        return not self.is_alive() and self._error is None

    def arrive(self) -> None:
        """Wait until all that is to be forwarded is here; raises what went wrong."""
        self._here.wait()
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait for the end; raises what went wrong."""
        self.join()
        self.arrive()


@dataclass(frozen=True)
class Arrival:
    """A value on its way to this rank; `wait` may be called once."""

    wait: Callable[[], torch.Tensor]


class Channels:
    """
    The transfers of a job, as far as they concern this rank.

    Args:
        transfers: all of the job, in the same order on every rank.
        lines: what their messages travel on.
        device: where values are.
    """

    def __init__(self, transfers: Iterable[Transfer], lines: Lines, device: torch.device | str = "cpu") -> None:
        self._lines, self._device = lines, torch.device(device)
        self._transfers = {transfer.label: transfer for transfer in transfers}
        self._first_tags: dict[str, int] = {}
        count = 0
        for label, transfer in self._transfers.items():
            self._first_tags[label] = count
            count += len(transfer.tasks)
        self._carriers: list[_Carrier] = []
        self._streams: dict[tuple[tuple[int, ...], tuple[int, ...]], torch.cuda.Stream] = {}
        if self._device.type == "cuda":
            self._connect()

    def _connect(self) -> None:
        """Greet along every line, in one order on all ranks: on NCCL the first message blocks until both are there."""
        chains = ((task.sender, *task.receivers) for each in self._transfers.values() for task in each.tasks)
        pairs = sorted({pair for chain in chains for pair in pairwise(chain)})
        self._lines.open(pairs)
        greeting, me = torch.zeros(1, device=self._device), self._lines.rank
        for sender, receiver in pairs:
            if me in (sender, receiver):
                end = self._lines.end(sender, receiver)
                (end.send if me == sender else end.receive)(greeting, 0).wait()

    def send(self, label: str, part: int, value: torch.Tensor) -> None:
        """
        Begin to send; what `Communicator.send` does.

        Raises:
            ValueError: this rank sends no such transfer, or `value` is not of the shape that it has of it.
        """
        transfer = self.transfer(label)
        mine = self._mine(transfer, transfer.source, part, "sent by")
        if tuple(value.shape) != (expected := _shape(mine)):
            raise ValueError(f"transfer {label!r} sends {list(expected)} from here, found {list(value.shape)}")
        if self._device.type != "cuda":
            self._carry(self._hops(transfer, part, lambda task: value[_inside(task, mine)].contiguous()))
            return
        stream = self._stream(transfer)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for hop in self._hops(transfer, part, lambda task: value[_inside(task, mine)].contiguous()):
                hop.finish()
        value.record_stream(stream)

    def receive(self, label: str, part: int) -> Arrival:
        """
        Begin to receive; what `Communicator.receive` does.

        Raises:
            ValueError: this rank receives no such transfer.
        """
        transfer = self.transfer(label)
        if self._device.type != "cuda":
            return self._receive(transfer, part)[0]
        stream, done = self._stream(transfer), torch.cuda.Event()
        with torch.cuda.stream(stream):
            # On CUDA this orders streams and blocks nobody.
            arrival, hops = self._receive(transfer, part)
            result = arrival.wait()
            done.record(stream)
            for hop in hops:
                hop.finish()

        def wait() -> torch.Tensor:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(done)
            result.record_stream(current)
            return result

        return Arrival(wait)

    def _receive(self, transfer: Transfer, part: int) -> tuple[Arrival, list[_Hop]]:
        mine = self._mine(transfer, transfer.target, part, "received by")
        result = torch.empty(_shape(mine), dtype=getattr(torch, transfer.dtype), device=self._device)
        beside: list[tuple[Task, torch.Tensor]] = []

        def block(task: Task) -> torch.Tensor:
            # In place where the slice is one contiguous block of the result.
            if _common(task, mine) == task.slice and (place := result[_inside(task, mine)]).is_contiguous():
                return place
            beside.append((task, result.new_empty([end - begin for begin, end in task.slice])))
            return beside[-1][1]

        hops = self._hops(transfer, part, block)
        carrier = self._carry([hop for hop in hops if hop.forwards])

        def wait() -> torch.Tensor:
            if carrier is not None:
                carrier.arrive()
            for hop in hops:
                if not hop.forwards:
                    hop.arrive()
            for task, landed in beside:
                _settle(task, landed, mine, result)
            return result

        return Arrival(wait), hops

    def _hops(self, transfer: Transfer, part: int, block: Callable[[Task], torch.Tensor]) -> list[_Hop]:
        first = self._first_tags[transfer.label]
        tasks = transfer.tasks_of(part, self._lines.rank)
        return [_Hop(task, first + number, block(task), self._lines) for number, task in tasks]

    def _carry(self, hops: Sequence[_Hop]) -> _Carrier | None:
        """Have sent what is to be sent, without waiting for it."""
        if not hops:
            return None
        if self._device.type == "cuda":
            for hop in hops:
                hop.forward()
            return None
        self._carriers = [carrier for carrier in self._carriers if not carrier.done]
        self._carriers.append(_Carrier(hops))
        return self._carriers[-1]

    def finish(self) -> None:
        """
        Wait until everything that was begun has been sent; raises what went wrong with it. On CUDA the current stream
        waits, for what was sent may be changed next.
        """
        for (sources, _), stream in self._streams.items():
            if self._lines.rank in sources:
                torch.cuda.current_stream(self._device).wait_stream(stream)
        while self._carriers:
            self._carriers.pop().finish()

    def transfer(self, label: str) -> Transfer:
        """
        The transfer of a name.

        Raises:
            ValueError: there is none.
        """
        if (found := self._transfers.get(label)) is None:
            known = ", ".join(map(repr, self._transfers)) or "none"
            raise ValueError(f"there is no transfer {label!r} in this job; its transfers: {known}")
        return found

    def _mine(self, transfer: Transfer, holders: Holders, part: int, verb: str) -> _Slices:
        """What this rank has of a value, as one of its holders."""
        if (me := self._lines.rank) not in holders.ranks:
            whose = f"is {verb} ranks {list(holders.ranks)}"
            raise ValueError(f"transfer {transfer.label!r} {whose}; this is rank {me}")
        return holders.slices(transfer.shape, me, part)

    def _stream(self, transfer: Transfer) -> torch.cuda.Stream:
        """
        A stream for all transfers from one stage to another, which both begin in one order; one that waits for a
        message must not hold up those between other stages. Not one per transfer, for torch has 32.
        """
        stages = transfer.source.ranks, transfer.target.ranks
        if stages not in self._streams:
            self._streams[stages] = torch.cuda.Stream(self._device)
        return self._streams[stages]


def _shape(slices: _Slices) -> tuple[int, ...]:
    return tuple(each.stop - each.start for each in slices)


def _inside(task: Task, held: _Slices) -> _Slices:
    """Where a task's slice is in a part that holds all of it."""
    pairs = zip(task.slice, held, strict=True)
    return tuple(slice(begin - each.start, end - each.start) for (begin, end), each in pairs)


def _common(task: Task, mine: _Slices) -> tuple[tuple[int, int], ...]:
    """What a task's slice and a part have in common, of each dim begin and end."""
    pairs = zip(task.slice, mine, strict=True)
    return tuple((max(begin, each.start), min(end, each.stop)) for (begin, end), each in pairs)


def _settle(task: Task, landed: torch.Tensor, mine: _Slices, result: torch.Tensor) -> None:
    """Put what arrived beside the result into its place there."""
    common = _common(task, mine)
    if any(b >= e for b, e in common):
        return
    whole = tuple(slice(begin, end) for begin, end in task.slice)
    place = Task(task.part, common, task.sender, task.receivers)
    result[_inside(place, mine)] = landed[_inside(place, whole)]
