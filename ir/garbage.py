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
    Exempt all objects from the collection at exit, which takes a second or two after a plan of a large step; the
    system frees their memory anyway.
    """
    try:
        yield
    finally:
        gc.freeze()
