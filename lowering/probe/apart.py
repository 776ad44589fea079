"""Running a function in a process of its own, since it may crash."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

_T = TypeVar("_T")


class DiedError(Exception):
    """The process ended without a result, or took too long."""


def run_apart(function: Callable[[], _T], seconds: float) -> _T:
    """
    The result of `function`, run in a copy of this process.

    A native op on inputs that it does not expect may end its process or write where it must not; neither reaches
    this one. The copy computes on one thread, for threads are not copied.

    Args:
        function: what it returns must be picklable.
        seconds: after which the copy is ended.

    Raises:
        DiedError: the copy gave no result: it was ended, or `function` raised.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(function, theirs), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of copies of processes with threads; this one waits for none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise DiedError(f"no result after {seconds:g} s")
        return ours.recv()
    except EOFError as error:
        process.join()
        raise DiedError(f"it ended with exit code {process.exitcode}") from error
    finally:
        ours.close()
        process.kill()
        process.join()


def _send(function: Callable[[], object], to: Connection) -> None:
    # What a dying op prints is of no use to the user; the error says what matters.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    to.send(function())
    to.close()
    # Handlers of the process that was copied are not for the copy to run.
    os._exit(0)
