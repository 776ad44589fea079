"""Refuse side effects of a forward pass, which a captured step would not repeat."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from ...ir.not_supported import COUNTED, OTHER_RANDOM, SAVED_TENSORS
from .captured import CaptureError

_HOOKS = "forward hooks the tensors that are saved for backward"


class Effects:
    """
    A watch over the forwards of a model, which tracing calls more than once.

    The first call is exempt. A number that only the first call changes, such as the length of a cache, is the same in
    all later steps. Random numbers that only the first call draws may come from modules that it imports.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._is_first = True

    @contextmanager
    def watched(self) -> Generator[None, None, None]:
        """
        Run a forward in the body.

        Raises:
            CaptureError: the forward takes random numbers from another library than torch, changes a number in a
                module, or hooks the tensors that are saved for backward.
        """
        drawn, numbers = _drawn_elsewhere(), _numbers(self._model)
        try:
            with torch.autograd.graph.disable_saved_tensors_hooks(_HOOKS):
                yield
        except RuntimeError as error:
            if _HOOKS in str(error):
                raise CaptureError(
                    f"{_HOOKS}, but a captured step saves no tensors; {SAVED_TENSORS.instead}"
                ) from error
            raise
        if not self._is_first:
            if _drawn_elsewhere() != drawn:
                raise CaptureError(
                    "forward takes random numbers from numpy or from Python's random, which would be the same in every "
                    f"step; {OTHER_RANDOM.instead}"
                )
            _refuse_changed(numbers, _numbers(self._model))
        self._is_first = False


def _refuse_changed(before: Mapping[tuple[str, str], object], after: Mapping[tuple[str, str], object]) -> None:
    for (path, name), number in after.items():
        if (path, name) in before and before[path, name] != number:
            where = f"module {path!r}" if path else "the model"
            raise CaptureError(
                f"every forward changes the number {name!r} of {where}, here from {before[path, name]} to {number}, "
                f"but a captured step keeps the value at capture; {COUNTED.instead}"
            )


def _numbers(model: nn.Module) -> dict[tuple[str, str], float]:
    """Return the Python numbers in the attributes of modules, by (module path, name)."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) in (int, float)
    }


def _drawn_elsewhere() -> tuple[object, ...]:
    """Return the states of the random generators of Python and numpy."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), *([str(numpy.random.get_state())] if numpy is not None else [])
