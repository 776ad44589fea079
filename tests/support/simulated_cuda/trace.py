"""The trace of one rank on its GPU: the bytes that each stream accesses, ordered across streams by vector clocks."""

from __future__ import annotations

import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from shardwright import runtime

POOL = 32
"""The number of streams in torch's pool, after which the first is reused."""

MAIN = "main"
"""The name of the stream that computes."""

Clock = Mapping[str, int]
"""From each stream to the number of its last op that has ended."""

_RUNTIME = Path(str(runtime.__file__)).parent


def line() -> str:
    """Return the three innermost lines of the program and the runtime in the call stack, innermost first."""
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < 3:
        if (name := _name_of_ours(frame.f_code.co_filename)) is not None:
            found.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


@cache
def _name_of_ours(filename: str) -> str | None:
    """Return the name of a file without its folder; None for files other than programs and the runtime."""
    path = Path(filename)
    return path.name if path.parent == _RUNTIME or filename == "<program>" else None


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts; `pytree` is several times slower, for each op."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, list | tuple | dict):
        items: Iterable[Any] = tree.values() if isinstance(tree, dict) else tree
        return [tensor for item in items for tensor in tensors(item)]
    return []


def _given(value: Any) -> object:
    """Return what the host knows of arguments: values of numbers; device, dtype, shape and strides of tensors."""
    if isinstance(value, torch.Tensor):
        return f"{value.device.type}:{value.dtype}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, list | tuple | dict):
        return [_given(item) for item in (value.items() if isinstance(value, dict) else value)]
    return value


@dataclass(frozen=True)
class Access:
    """An access of an op to a range of bytes of a piece of memory."""

    stream: str
    number: int
    begin: int
    end: int
    writes: bool
    what: str


@dataclass(frozen=True)
class Launch:
    """An operation of NCCL: its communicator, its arguments, its stream and its number on that stream."""

    communicator: str
    what: tuple[object, ...]
    stream: str
    number: int
    line: str


@dataclass(frozen=True)
class Queued:
    """An entry of a stream: a launch, by index, or a wait until other streams reach a clock."""

    stream: str
    launch: int | None
    until: Clock


@dataclass
class _Memory:
    """A piece of memory: the stream that allocated it, the streams recorded on it, and its accesses."""

    home: str
    recorded: set[str] = field(default_factory=set[str])
    accesses: list[Access] = field(default_factory=list[Access])


class Trace:
    """
    The trace of one rank.

    Args:
        found: faults by kind (`race`, `freed`, `sync`, `error`), each with its count.
    """

    def __init__(self, rank: int, found: Mapping[str, Counter[str]]) -> None:
        self.rank, self.found = rank, found
        self.clocks: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.current = MAIN
        self.drawn = 0
        self.streams_of_nccl: dict[str, str] = {}
        self.launches: list[Launch] = []
        self.launches_of_steps = 0
        self.queued: list[Queued] = []
        self.kernels: Counter[str] = Counter()
        self.copied: Counter[str] = Counter()
        # The calls of ops on the GPU with all arguments from the host, by run of the program.
        self.runs: list[list[str]] = []
        self.records = False
        # The operations of NCCL collected so far for a launch of several, or None.
        self.together: list[Any] | None = None
        self._memory: dict[int, _Memory] = {}
        self._free_memory: defaultdict[str, list[_Memory]] = defaultdict(list)

    def tell(self, kind: str, text: str) -> None:
        """Record a fault."""
        self.found[kind][text] += 1

    def ran(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Record an op with its arguments from the host: numbers, and the types and devices of tensors."""
        if self.records and any(each.device.type == "cuda" for each in tensors((args, kwargs))):
            self.runs[-1].append(f"{func}{_given((args, dict(kwargs)))} at {line()}")

    @contextmanager
    def recorded(self) -> Generator[None, None, None]:
        """Record the ops of one run of the program."""
        self.runs.append([])
        self.records = True
        try:
            yield
        finally:
            self.records = False

    def new_stream(self) -> str:
        """Return a stream of torch's pool, which the streams of NCCL share."""
        self.drawn += 1
        if self.drawn > POOL:
            self.tell("alias", f"stream {self.drawn} of a pool of {POOL} is drawn at {line()}")
        return f"pool {(self.drawn - 1) % POOL}"

    def wait(self, stream: str, until: Clock) -> None:
        """Make a stream wait until other streams reach a clock."""
        self.queued.append(Queued(stream, None, dict(until)))
        mine = self.clocks[stream]
        for other, number in until.items():
            mine[other] = max(mine.get(other, 0), number)

    def memory(self, tensor: torch.Tensor) -> _Memory:
        """Return the memory of a tensor; an unseen tensor gets a new record."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._memory:
            self._reuse(self.current)
            self._memory[key] = _Memory(self.current)
            weakref.finalize(storage, self._free, key).atexit = False
        return self._memory[key]

    def _free(self, key: int) -> None:
        """Return memory to the pool of its stream, which reuses it once the recorded streams have finished with it."""
        memory = self._memory.pop(key)
        for stream in memory.recorded:
            clock = self.clocks[stream]
            memory.accesses = [each for each in memory.accesses if clock.get(each.stream, 0) < each.number]
        self._free_memory[memory.home].append(memory)

    def _reuse(self, stream: str) -> None:
        """Check that any free memory of a stream's pool may be allocated next."""
        clock = self.clocks[stream]
        for memory in self._free_memory.pop(stream, ()):
            elsewhere = [each for each in memory.accesses if each.stream != stream]
            if late := [each for each in elsewhere if clock.get(each.stream, 0) < each.number]:
                self.tell("freed", f"memory of {stream} is used again while {late[0].stream} may be at {late[0].what}")

    def kernel(self, stream: str, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor], name: str) -> int:
        """Record an op on a stream; return its number there."""
        clock = self.clocks[stream]
        clock[stream] = number = clock.get(stream, 0) + 1
        what = f"{name} on {stream} at {line()}"
        for tensors, is_write in ((reads, False), (writes, True)):
            for tensor in tensors:
                self._touch(stream, number, tensor, is_write, what)
        return number

    def _touch(self, stream: str, number: int, tensor: torch.Tensor, writes: bool, what: str) -> None:
        if not tensor.numel() or tensor.device.type != "cuda":
            return
        memory, size = self.memory(tensor), tensor.element_size()
        begin = int(tensor.storage_offset()) * size
        end = begin + size * int(1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)))
        seen = self.clocks[stream]
        for each in memory.accesses:
            apart = each.end <= begin or end <= each.begin
            if each.stream == stream or apart or not (writes or each.writes):
                continue
            if seen.get(each.stream, 0) < each.number:
                self.tell("race", f"{what} | against | {each.what}")
        # A later access of the same stream to the same bytes replaces the earlier one.
        memory.accesses = [
            each
            for each in memory.accesses
            if (each.stream, each.begin, each.end) != (stream, begin, end) or (each.writes and not writes)
        ]
        memory.accesses.append(Access(stream, number, begin, end, writes, what))
