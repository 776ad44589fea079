"""Pause Python's cyclic garbage collector where it costs more than it frees."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def collector_paused() -> Generator[None]:
    """Pause the collector: imports and planning make little garbage, and collecting takes up to half of their time."""
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
    Pause the collector for the rest of the process, also at exit. A collection takes a second or two after a plan of a
    large step, and the system frees the memory anyway.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
