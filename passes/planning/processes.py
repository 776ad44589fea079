"""Work on a list in several processes of this machine, which have all that this one has in memory."""

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
    Return `[function(item) for item in items]`, in at most so many processes; the results are the same for any number.

    Processes are forked, so that `function` may use anything in memory and needs no threads; what it changes in
    another process is lost. The share of a process that dies is done by this one.

    Args:
        pack, unpack: what becomes of a result that another process found: on its way it is pickled.
        together: items for which it gives the same go to the same process.
    """
    mine, *others = _shares(items, processes, together)
    children: list[tuple[ForkProcess, Connection]] = []
    found: dict[int, R] = {}
    try:
        for share in others:
            children.append(_started(lambda index: pack(function(items[index])), share))
        found |= {index: function(items[index]) for index in mine}
        for _, reader in children:
            with suppress(EOFError, OSError):
                found |= {index: unpack(result) for index, result in reader.recv().items()}
    finally:
        for child, reader in children:
            child.kill()
            child.join()
            reader.close()
    return [found[index] if index in found else function(item) for index, item in enumerate(items)]


def _shares(items: Sequence[T], processes: int, together: Callable[[T], Hashable]) -> list[tuple[int, ...]]:
    """Return the items that each process takes care of, this one first; all but this one have some."""
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
        # The child uses Python and numpy alone, whose locks are whole after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    writer.close()
    return child, reader


def _work(job: Callable[[int], Any], share: tuple[int, ...], writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The parent does the work again if it fails here, and fails itself.
    with suppress(Exception):
        writer.send({index: job(index) for index in share})
