"""The present layer of this rank's program, known only in programs with ranges by layer (`layer_ranges`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass
class PlaceInProgram:
    """The layer that the main thread computes, as ``backward h.0.mlp.up``; empty if unknown."""

    layer: str = ""


PLACE = PlaceInProgram()
"""The place of this process."""


def profiler_on() -> bool:
    """Whether torch's profiler watches this process."""
    return torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]


def named_range(what: str, over: str) -> AbstractContextManager[object]:
    """
    Return a profiler range for communication, as ``all_gather over gpu, forward h.0.mlp.up``; empty without a profiler.

    Args:
        what: the kind of collective, or the action on it.
        over: axes of the collective, or label of a transfer.
    """
    if not profiler_on():
        return _NO_RANGE
    at = f", {PLACE.layer}" if PLACE.layer else ""
    return torch.profiler.record_function(f"{what} over {over}{at}")


_NO_RANGE = nullcontext()
