"""
Transfers: values that the ranks of one stage of a pipeline send to the ranks of another.

A transfer is a list of unit tasks. In each task the sender's slice travels along the chain of receivers in chunks.
Every receiver forwards a chunk as soon as it arrives (the pipelined broadcast of cross-mesh 3.1), so that one copy
leaves the sender and the time hardly grows with the number of receivers. With one receiver it is a plain send.

The starts of sends and receives never block. Receive buffers are posted at once, and forwarding is independent
of the main thread: it has a separate thread on the CPU, and streams on CUDA. So ranks may begin and await transfers in
any order and cannot deadlock, if the values themselves have no cyclic dependence. On gloo each message has a
number. NCCL has no numbers: two ranks must begin the transfers from one to the other in the same order. An NCCL
operation blocks all later operations of its communicator, so each pair of ranks has a communicator per direction.
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
    The ranks that hold a value, and its sharding on them.

    Args:
        mesh: mesh of their stage, including its temporal axes.
        ranks: ranks in the job, in the order of the mesh.
        sharding: the sharding in the text form of `ir.sharding`; empty for a replicated value.
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    sharding: str = ""

    @cached_property
    def _grid(self) -> Grid:
        return Grid.of(self.mesh, self.ranks)

    def slices(self, shape: Sequence[int], rank: int, part: int) -> _Slices:
        """Return the slices that `rank` of the job holds of part `part` of a value of global `shape`."""
        spread = parse_sharding(self.sharding) if self.sharding else Sharding.replicated(len(shape))
        return self._grid.slices(shape, spread, rank, part)


@dataclass(frozen=True)
class Transfer:
    """
    A value that one stage sends to another, once per part of the temporal axes.

    Args:
        label: name of the transfer, unique in a job.
        shape: global shape of all parts together.
        dtype: torch's name of the dtype, such as ``float32``.
        source: the ranks that send the value.
        target: the ranks that receive the value.
        tasks: unit tasks; ranks begin them in this order.
    """

    label: str
    shape: tuple[int, ...]
    dtype: str
    source: Holders
    target: Holders
    tasks: tuple[Task, ...]

    def tasks_of(self, part: int, rank: int) -> list[tuple[int, Task]]:
        """Return the tasks of a part that involve `rank`, each with its number in the transfer."""
        return [
            (number, task)
            for number, task in enumerate(self.tasks)
            if task.part == part and task.elements and rank in (task.sender, *task.receivers)
        ]


@dataclass(frozen=True)
class _LineEnd:
    """One end of a line between two ranks: a group for one direction, and the other rank's index in it."""

    group: dist.ProcessGroup
    place: int

    def send(self, chunk: torch.Tensor, tag: int) -> Waitable:
        return self.group.send([chunk], self.place, tag)

    def receive(self, chunk: torch.Tensor, tag: int) -> Waitable:
        return self.group.recv([chunk], self.place, tag)


class Lines:
    """
    The process groups of messages between any two ranks: one for messages to higher ranks, and one to lower ranks.

    Every rank of the job must construct them, at the same point in the creation of groups of all ranks.
    """

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        self.rank = dist.get_rank()
        self._timeout = timeout
        self._of_all = self._both(list(range(dist.get_world_size())))
        self._of_pairs: dict[tuple[int, int], tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}

    def _both(self, ranks: list[int]) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Create a group for each direction; a rank that is not a member gets placeholders."""
        lines = (lambda: dist.new_group(ranks, timeout=self._timeout) for _ in range(2))
        up, down = (ACTIVITY.wait("a line between ranks", line) for line in lines)
        return up, down  # pyright: ignore[reportReturnType]

    def open(self, pairs: Iterable[tuple[int, int]]) -> None:
        """
        Create separate groups for pairs of ranks. Every rank must call this with the same pairs (sender, receiver).
        """
        for one, other in sorted({(min(pair), max(pair)) for pair in pairs} - self._of_pairs.keys()):
            self._of_pairs[one, other] = self._both([one, other])

    def end(self, sender: int, receiver: int) -> _LineEnd:
        """Return this rank's end of the line from `sender` to `receiver`; this rank must be one of them."""
        other = receiver if self.rank == sender else sender
        pair = min(sender, receiver), max(sender, receiver)
        if pair not in self._of_pairs:
            return _LineEnd(self._of_all[sender > receiver], other)
        return _LineEnd(self._of_pairs[pair][sender > receiver], pair.index(other))


class _Hop:
    """
    A task at this rank: chunks arrive from the rank before it in the chain, if any, and are sent to the rank after it.

    The constructor posts the receives, and starts the sends of chunks that this rank already has.

    Args:
        block: contiguous tensor to send, or to receive into.
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
        """Forward each chunk as soon as it arrives."""
        for work, chunk in zip(self._coming, self._chunks, strict=True):
            work.wait()
            self.sent.append(self._send(chunk))

    def arrive(self) -> None:
        """Wait until all chunks have arrived."""
        for work in self._coming:
            work.wait()

    def finish(self) -> None:
        """Wait until all chunks are sent."""
        for work in self.sent:
            work.wait()


class _Carrier(threading.Thread):
    """Forwards the chunks of a transfer at this rank; ends, and releases the memory, when all are sent."""

    def __init__(self, hops: Sequence[_Hop]) -> None:
        super().__init__(name="shardwright transfer", daemon=True)
        self._hops, self._here = list(hops), threading.Event()
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Forward the chunks, then wait for all sends."""
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
        """Whether the thread has ended without an error."""
        return not self.is_alive() and self._error is None

    def arrive(self) -> None:
        """Wait until all chunks to forward have arrived; raise the thread's error, if any."""
        self._here.wait()
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait for the end of the thread; raise its error, if any."""
        self.join()
        self.arrive()


@dataclass(frozen=True)
class Arrival:
    """A value in flight to this rank; `wait` may be called once."""

    wait: Callable[[], torch.Tensor]


class Channels:
    """
    The transfers of a job that involve this rank.

    Args:
        transfers: all transfers of the job, in the same order on every rank.
        lines: process groups of their messages.
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
        """Send a first message along every line, in the same order on all ranks: NCCL blocks until both ranks join."""
        chains = ((task.sender, *task.receivers) for transfer in self._transfers.values() for task in transfer.tasks)
        pairs = sorted({pair for chain in chains for pair in pairwise(chain)})
        self._lines.open(pairs)
        greeting, me = torch.zeros(1, device=self._device), self._lines.rank
        for sender, receiver in pairs:
            if me in (sender, receiver):
                end = self._lines.end(sender, receiver)
                (end.send if me == sender else end.receive)(greeting, 0).wait()

    def send(self, label: str, part: int, value: torch.Tensor) -> None:
        """
        Begin to send, for `Communicator.send`.

        Raises:
            ValueError: this rank sends no such transfer, or `value` has an unexpected shape.
        """
        transfer = self.transfer(label)
        mine = self._mine(transfer, transfer.source, part, "sent by")
        if tuple(value.shape) != (expected := _shape(mine)):
            raise ValueError(
                f"transfer {label!r} sends shape {list(expected)} from this rank, found {list(value.shape)}"
            )
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
        Begin to receive, for `Communicator.receive`.

        Raises:
            ValueError: this rank receives no such transfer.
        """
        transfer = self.transfer(label)
        if self._device.type != "cuda":
            return self._receive(transfer, part)[0]
        stream, done = self._stream(transfer), torch.cuda.Event()
        with torch.cuda.stream(stream):
            # On CUDA this orders streams without blocking the CPU.
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
        copies: list[tuple[Task, torch.Tensor]] = []

        def block(task: Task) -> torch.Tensor:
            # Receive in place if the slice is a contiguous block of the result.
            if _common(task, mine) == task.slice and (place := result[_inside(task, mine)]).is_contiguous():
                return place
            copies.append((task, result.new_empty([end - begin for begin, end in task.slice])))
            return copies[-1][1]

        hops = self._hops(transfer, part, block)
        carrier = self._carry([hop for hop in hops if hop.forwards])

        def wait() -> torch.Tensor:
            if carrier is not None:
                carrier.arrive()
            for hop in hops:
                if not hop.forwards:
                    hop.arrive()
            for task, landed in copies:
                _settle(task, landed, mine, result)
            return result

        return Arrival(wait), hops

    def _hops(self, transfer: Transfer, part: int, block: Callable[[Task], torch.Tensor]) -> list[_Hop]:
        first = self._first_tags[transfer.label]
        tasks = transfer.tasks_of(part, self._lines.rank)
        return [_Hop(task, first + number, block(task), self._lines) for number, task in tasks]

    def _carry(self, hops: Sequence[_Hop]) -> _Carrier | None:
        """Forward and send in the background."""
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
        Wait until everything that was begun has been sent, and raise its error, if any. On CUDA the current stream
        waits, because the sent values may be changed next.
        """
        for (sources, _), stream in self._streams.items():
            if self._lines.rank in sources:
                torch.cuda.current_stream(self._device).wait_stream(stream)
        while self._carriers:
            self._carriers.pop().finish()

    def transfer(self, label: str) -> Transfer:
        """
        Return the transfer with a name.

        Raises:
            ValueError: no such transfer exists.
        """
        if (transfer := self._transfers.get(label)) is None:
            existing = ", ".join(map(repr, self._transfers)) or "none"
            raise ValueError(f"there is no transfer {label!r} in this job; its transfers: {existing}")
        return transfer

    def _mine(self, transfer: Transfer, holders: Holders, part: int, verb: str) -> _Slices:
        """Return this rank's part of a value, as one of its holders."""
        if (me := self._lines.rank) not in holders.ranks:
            whose = f"is {verb} ranks {list(holders.ranks)}"
            raise ValueError(f"transfer {transfer.label!r} {whose}; this is rank {me}")
        return holders.slices(transfer.shape, me, part)

    def _stream(self, transfer: Transfer) -> torch.cuda.Stream:
        """
        Return the stream of all transfers from one stage to another, which both begin in the same order; transfers
        between other stages must not wait for them. A stream per transfer is impossible, because torch has only 32.
        """
        stages = transfer.source.ranks, transfer.target.ranks
        if stages not in self._streams:
            self._streams[stages] = torch.cuda.Stream(self._device)
        return self._streams[stages]


def _shape(slices: _Slices) -> tuple[int, ...]:
    return tuple(dim.stop - dim.start for dim in slices)


def _inside(task: Task, held: _Slices) -> _Slices:
    """Return the place of a task's slice in a part that contains it."""
    pairs = zip(task.slice, held, strict=True)
    return tuple(slice(begin - dim.start, end - dim.start) for (begin, end), dim in pairs)


def _common(task: Task, mine: _Slices) -> tuple[tuple[int, int], ...]:
    """Return the intersection of a task's slice and a part, as start and end per dim."""
    pairs = zip(task.slice, mine, strict=True)
    return tuple((max(begin, dim.start), min(end, dim.stop)) for (begin, end), dim in pairs)


def _settle(task: Task, landed: torch.Tensor, mine: _Slices, result: torch.Tensor) -> None:
    """Copy the received data of a task that was not received in place to its place in the result."""
    common = _common(task, mine)
    if any(b >= e for b, e in common):
        return
    whole = tuple(slice(begin, end) for begin, end in task.slice)
    place = Task(task.part, common, task.sender, task.receivers)
    result[_inside(place, mine)] = landed[_inside(place, whole)]
