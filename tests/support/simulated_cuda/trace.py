"""What one rank does on its GPU: which stream touches which bytes, knowing of what on the others, by vector clocks."""

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
"""Streams that torch hands out before it hands out the first again."""

MAIN = "main"
"""The stream that computes."""

Clock = Mapping[str, int]
"""By stream, up to which of its ops all are over."""

_RUNTIME = Path(str(runtime.__file__)).parent


def line() -> str:
    """The innermost lines of the program and of the package, innermost first."""
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < 3:
        if (name := _name_of_ours(frame.f_code.co_filename)) is not None:
            found.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


@cache
def _name_of_ours(filename: str) -> str | None:
    """Return the name of a file without its folder, or None if it is neither a program nor of the runtime."""
    path = Path(filename)
    return path.name if path.parent == _RUNTIME or filename == "<program>" else None


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples and dicts; `pytree` takes several times as long, for each op of a program."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, list | tuple | dict):
        items: Iterable[Any] = tree.values() if isinstance(tree, dict) else tree
        return [tensor for item in items for tensor in tensors(item)]
    return []


def _given(value: Any) -> object:
    """What the host says of arguments: all of a number, of a tensor its form and where it is."""
    if isinstance(value, torch.Tensor):
        return f"{value.device.type}:{value.dtype}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, list | tuple | dict):
        return [_given(item) for item in (value.items() if isinstance(value, dict) else value)]
    return value


@dataclass(frozen=True)
class Access:
    """One op's use of a range of bytes of a piece of memory."""

    stream: str
    number: int
    begin: int
    end: int
    writes: bool
    what: str


@dataclass(frozen=True)
class Launch:
    """An operation of NCCL: on which communicator, with what, and as which op of which stream."""

    communicator: str
    what: tuple[object, ...]
    stream: str
    number: int
    line: str


@dataclass(frozen=True)
class Queued:
    """What a stream is told, in order: the launch of that index, or to wait for others."""

    stream: str
    launch: int | None
    until: Clock


@dataclass
class _Memory:
    """A piece of memory: the stream it was allocated on, those it was recorded on, and who used it."""

    home: str
    recorded: set[str] = field(default_factory=set[str])
    accesses: list[Access] = field(default_factory=list[Access])


class Trace:
    """
    One rank.

    Args:
        found: what is wrong, by kind (`race`, `freed`, `sync`, `error`), each text with how often.
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
        # By run of the program, the calls of ops on the GPU with all that they are given by the host.
        self.runs: list[list[str]] = []
        self.records = False
        # What a launch of several operations of NCCL has so far, while one is put together.
        self.together: list[Any] | None = None
        self._memory: dict[int, _Memory] = {}
        self._free_memory: defaultdict[str, list[_Memory]] = defaultdict(list)

    def tell(self, kind: str, text: str) -> None:
        """Write down that something is wrong."""
        self.found[kind][text] += 1

    def ran(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write down an op with what the host gives it: its numbers, and the forms and devices of its tensors."""
        if self.records and any(each.device.type == "cuda" for each in tensors((args, kwargs))):
            self.runs[-1].append(f"{func}{_given((args, dict(kwargs)))} at {line()}")

    @contextmanager
    def recorded(self) -> Generator[None, None, None]:
        """One run of the program."""
        self.runs.append([])
        self.records = True
        try:
            yield
        finally:
            self.records = False

    def new_stream(self) -> str:
        """A stream of torch's pool, from which NCCL's come too."""
        self.drawn += 1
        if self.drawn > POOL:
            self.tell("alias", f"stream {self.drawn} of a pool of {POOL} is drawn at {line()}")
        return f"pool {(self.drawn - 1) % POOL}"

    def wait(self, stream: str, until: Clock) -> None:
        """Have a stream wait for what others have done."""
        self.queued.append(Queued(stream, None, dict(until)))
        mine = self.clocks[stream]
        for other, number in until.items():
            mine[other] = max(mine.get(other, 0), number)

    def memory(self, tensor: torch.Tensor) -> _Memory:
        """That of a tensor; it is new where the tensor was not seen before."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._memory:
            self._reuse(self.current)
            self._memory[key] = _Memory(self.current)
            weakref.finalize(storage, self._free, key).atexit = False
        return self._memory[key]

    def _free(self, key: int) -> None:
        """Memory goes back to the pool of its stream, which hands it out once the recorded streams are over with it."""
        memory = self._memory.pop(key)
        for stream in memory.recorded:
            clock = self.clocks[stream]
            memory.accesses = [each for each in memory.accesses if clock.get(each.stream, 0) < each.number]
        self._free_memory[memory.home].append(memory)

    def _reuse(self, stream: str) -> None:
        """Any free memory of a stream's pool may be what the stream is given next."""
        clock = self.clocks[stream]
        for memory in self._free_memory.pop(stream, ()):
            elsewhere = [each for each in memory.accesses if each.stream != stream]
            if late := [each for each in elsewhere if clock.get(each.stream, 0) < each.number]:
                self.tell("freed", f"memory of {stream} is used again while {late[0].stream} may be at {late[0].what}")

    def kernel(self, stream: str, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor], name: str) -> int:
        """An op on a stream; its number there."""
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
        # A later access of the same stream to the same bytes stands for the earlier one.
        memory.accesses = [
            each
            for each in memory.accesses
            if (each.stream, each.begin, each.end) != (stream, begin, end) or (each.writes and not writes)
        ]
        memory.accesses.append(Access(stream, number, begin, end, writes, what))
