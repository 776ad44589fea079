"""
Activation checkpointing in the model: which calls are made inside of `torch.utils.checkpoint.checkpoint`.

While a model is traced its checkpoints only call their functions, for what torch does to run them again in backward
cannot be traced. Each region has a number, which its ops carry; the pass `recompute` then does what was asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import torch.utils.checkpoint as checkpointing

from ...ir.not_supported import CHECKPOINT_POLICY
from .captured import CaptureError


class Regions:
    """The checkpointed regions that a forward goes through, numbered from 1 in the order of their calls."""

    def __init__(self) -> None:
        self.current = 0
        """The outermost region that is running; 0 outside of all."""
        self._count = 0

    @contextlib.contextmanager
    def entered(self) -> Generator[None, None, None]:
        """Run the body as a region; one inside of another is part of it."""
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
    Let torch's checkpoints, reentrant or not, run their functions as regions.

    Args:
        where: the place of the present call, for messages.

    Raises:
        CaptureError: in the body, at a checkpoint with a `context_fn`: which values its policy keeps is not read.
    """

    class Reentrant:
        """In the place of torch's autograd function."""

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
                f"{where()}: a checkpoint has a context_fn, whose choice of what is kept is not supported; "
                f"{CHECKPOINT_POLICY.instead}"
            )
        with regions.entered():
            yield

    module: object = checkpointing
    names = {"CheckpointFunction": Reentrant, "_checkpoint_without_reentrant_generator": without_reentrance}
    before = {name: getattr(module, name) for name in names}
    for name, instead in names.items():
        setattr(module, name, instead)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(module, name, original)
