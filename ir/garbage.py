"""Pausing Python's collector of cyclic garbage, where it costs more than it frees."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def collector_paused() -> Generator[None]:
    """Imports and planning produce hardly any garbage, and collecting it takes up to half of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def kept_to_the_end() -> Generator[None]:
    """
    What a process has made when it ends is left to the system: the collection at exit, a second or two after a plan
    of a large step, would only look at it all once more.
    """
    try:
        yield
    finally:
        gc.freeze()
