"""Apply a function to a list in several processes of this machine, which start with a copy of this one's memory."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


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
    Return `[function(item) for item in items]`, computed in at most `processes` processes, with the same results.

    Processes are forked, so `function` may read anything in memory and needs no threads; its side effects in another
    process are lost. This process repeats the share of a process that dies.

    Args:
        pack, unpack: conversions of a result before another process pickles it, and after this process reads it.
        together: key of an item; items with equal keys go to the same process.
    """
    mine, *others = _shares(items, processes, together)
    children: list[tuple[ForkProcess, Connection]] = []
    results: dict[int, R] = {}
    try:
        for share in others:
            children.append(_started(lambda index: pack(function(items[index])), share))
        results |= {index: function(items[index]) for index in mine}
        for _, reader in children:
            with suppress(EOFError, OSError):
                results |= {index: unpack(result) for index, result in reader.recv().items()}
    finally:
        for child, reader in children:
            child.kill()
            child.join()
            reader.close()
    return [results[index] if index in results else function(item) for index, item in enumerate(items)]


def _shares(items: Sequence[T], processes: int, together: Callable[[T], Hashable]) -> list[tuple[int, ...]]:
    """Return the indices of the items for each process, this one first; every other process has at least one item."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(together(item), []).append(index)
    shares: list[list[int]] = [[] for _ in range(max(1, min(processes, len(groups))))]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [tuple(share) for share in shares]


def _started(job: Callable[[int], Any], share: tuple[int, ...]) -> tuple[ForkProcess, Connection]:
    reader, writer = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_work, args=(job, share, writer))
    with warnings.catch_warnings():
        # The child uses only Python and numpy, whose locks stay valid after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    writer.close()
    return child, reader


def _work(job: Callable[[int], Any], share: tuple[int, ...], writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # If the work fails here, the parent repeats it and reports the failure.
    with suppress(Exception):
        writer.send({index: job(index) for index in share})
