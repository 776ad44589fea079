"""
Activation checkpointing in the model: record which calls run inside `torch.utils.checkpoint.checkpoint`.

Torch's recomputation in backward cannot be traced, so a checkpoint only calls its function while a model is traced.
Each region has a number, which its ops carry, and the pass `recompute` recomputes the values of the region.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import torch.utils.checkpoint as checkpointing

from ...ir.not_supported import CHECKPOINT_POLICY
from .captured import CaptureError


class Regions:
    """The checkpointed regions of a forward, numbered from 1 in the order of their calls."""

    def __init__(self) -> None:
        self.current = 0
        """The number of the outermost running region, or 0."""
        self._count = 0

    @contextlib.contextmanager
    def entered(self) -> Generator[None, None, None]:
        """Run the body as a region; a nested region belongs to the outer region."""
        outer = self.current
        if not outer:
            self._count += 1
            self.current = self._count
        try:
            yield
        finally:
            self.current = outer


@contextlib.contextmanager
def checkpoints_numbered(regions: Regions, where: Callable[[], object]) -> Generator[None, None, None]:
    """
    Let torch's checkpoints, both reentrant and non-reentrant, run their functions as regions.

    Args:
        where: returns the place of the current call, for messages.

    Raises:
        CaptureError: the body runs a checkpoint with a `context_fn`, whose policy cannot be captured.
    """

    class Reentrant:
        """The replacement of torch's autograd function."""

        @staticmethod
        def apply(function: Callable[..., object], preserve: bool, *args: object) -> object:
            with regions.entered():
                return function(*args)

    def without_reentrance(
        function: Callable[..., object],
        preserve: bool,
        context_fn: Callable[..., object],
        *rest: object,
        **options: object,
    ) -> Iterator[None]:
        if context_fn is not checkpointing.noop_context_fn:
            raise CaptureError(
                f"{where()}: a checkpoint has a context_fn, whose policy for kept values is not supported; "
                f"{CHECKPOINT_POLICY.instead}"
            )
        with regions.entered():
            yield

    module: object = checkpointing
    names = {"CheckpointFunction": Reentrant, "_checkpoint_without_reentrant_generator": without_reentrance}
    before = {name: getattr(module, name) for name in names}
    for name, replacement in names.items():
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(module, name, original)
