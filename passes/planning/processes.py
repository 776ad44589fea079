"""Work on a list in several processes of this machine, which have all that this one has in memory."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class _Child:
    """A process at work, and where its results come from."""

    pid: int
    output: BinaryIO
    share: tuple[int, ...]


def _same(found: Any) -> Any:
    return found


def side_by_side(
    function: Callable[[T], R],
    items: Sequence[T],
    processes: int,
    *,
    pack: Callable[[R], Any] = _same,
    unpack: Callable[[Any], R] = _same,
    together: Callable[[T], Hashable] = id,
) -> list[R]:
    """
    `[function(item) for item in items]`, in at most so many processes; the results are the same for any number.

    Processes are forked, so that `function` may use anything in memory and needs no threads; what it changes in
    another process is lost. The share of a process that dies is done by this one.

    Args:
        pack, unpack: what becomes of a result that another process found: on its way it is pickled.
        together: items for which it gives the same go to the same process.
    """
    mine, *others = _shares(items, processes, together)
    children: list[_Child] = []
    found: dict[int, R] = {}
    try:
        for share in others:
            children.append(_started(lambda item: pack(function(item)), items, share))
        for index in mine:
            found[index] = function(items[index])
        for child in children:
            found |= {index: unpack(result) for index, result in _collected(child).items()}
    finally:
        for child in children:
            _ended(child)
    return [found[index] if index in found else function(item) for index, item in enumerate(items)]


def _shares(items: Sequence[T], processes: int, together: Callable[[T], Hashable]) -> list[tuple[int, ...]]:
    """Of which items each process takes care, this one first; all but this one have some."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(together(item), []).append(index)
    shares: list[list[int]] = [[] for _ in range(max(1, min(processes, len(groups))))]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [tuple(share) for share in shares]


def _started(function: Callable[[T], R], items: Sequence[T], share: tuple[int, ...]) -> _Child:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The child uses Python and numpy alone, whose locks are whole after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(pid, os.fdopen(reader, "rb"), share)
    # From here on nothing may return: what the caller would do is for the parent to do.
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(reader)
        found = {index: function(items[index]) for index in share}
        with os.fdopen(writer, "wb") as output:
            pickle.dump(found, output, pickle.HIGHEST_PROTOCOL)
        status = 0
    finally:
        os._exit(status)


def _collected(child: _Child) -> dict[int, Any]:
    """What a process has found; nothing if it died."""
    with suppress(EOFError, pickle.UnpicklingError):
        return pickle.load(child.output)
    return {}


def _ended(child: _Child) -> None:
    """Wait for a process; one whose results nobody waits for any more is stopped."""
    child.output.close()
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
