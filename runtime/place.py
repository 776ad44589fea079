"""Where in its program this rank is: known to programs with ranges by layer alone (`layer_ranges`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass
class PlaceInProgram:
    """The layer at which the main thread is, as ``backward h.0.mlp.up``; empty where that is unknown."""

    layer: str = ""


PLACE = PlaceInProgram()
"""Of this process."""


def profiler_on() -> bool:
    """Whether a profiler of torch's watches this process."""
    return torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]


def named_range(what: str, over: str) -> AbstractContextManager[object]:
    """
    While a profiler is on, a range for communication: ``all_gather over gpu, forward h.0.mlp.up``; else none.

    Args:
        what: the kind of collective, or what is done about it.
        over: its axes, or the label of a transfer.
    """
    if not profiler_on():
        return _NO_RANGE
    at = f", {PLACE.layer}" if PLACE.layer else ""
    return torch.profiler.record_function(f"{what} over {over}{at}")


_NO_RANGE = nullcontext()
