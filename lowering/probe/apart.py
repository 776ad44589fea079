"""Run a function in a separate process, since it may crash."""

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
    """The process ended without a result or exceeded its time limit."""


def run_apart(function: Callable[[], _T], seconds: float) -> _T:
    """
    Run `function` in a fork of this process and return its result.

    A native op on unexpected inputs may crash or corrupt memory; in a fork it does not affect this process. The fork
    computes on one thread, because a fork does not copy threads.

    Args:
        function: a function with a picklable result.
        seconds: time limit of the fork.

    Raises:
        DiedError: the fork returned no result, because it crashed, exceeded the limit, or `function` raised.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(function, theirs), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns about forks of processes with threads; this fork waits for none of the threads.
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
    # The output of a crashing op is useless to the user; the error has the information.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    to.send(function())
    to.close()
    # The fork must not run the exit handlers of its parent.
    os._exit(0)
