"""Eager PyTorch with the random numbers of a plan, to compare models with dropout."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ...ir.counter import step_seed
from ...lowering.fused.random_draws import DRAWS, arguments_by_name, draw_arguments, draws_nothing
from ...runtime import counter_random as drawing


@contextmanager
def counter_random(seed: int = 0, step: int = 0) -> Generator[None, None, None]:
    """
    Make PyTorch's random ops draw the same numbers as a plan with this seed, in its training step number `step`.

    Run the model and its loss inside the context, in train mode, as the training step does; backward and update draw
    nothing. Every op takes the next stream, so use one context for one forward pass::

        with shardwright.counter_random(seed=0, step=number):
            loss = loss_function(model(inputs), labels)
        loss.backward()

    Args:
        seed: the seed that the program is started with.
        step: the number of the step, counted from 0.

    Raises:
        RuntimeError: an op draws random numbers that cannot be drawn shard by shard; capture rejects it too.
    """
    with _Drawing(torch.tensor(step_seed(seed, step))):
        yield


class _Drawing(TorchDispatchMode):
    """A dispatch mode that gives every random op the next stream of a seed."""

    def __init__(self, seed: torch.Tensor) -> None:
        super().__init__()
        self._seed, self._streams = seed, count()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func not in DRAWS:
            _refuse_other_draws(func, args, kwargs)
            return func(*args, **kwargs)
        draw, given = DRAWS[func], arguments_by_name(func, args, kwargs)
        if draws_nothing(func, given):
            return func(*args, **kwargs)
        function, place = getattr(drawing, draw.function), {"stream": next(self._streams)}
        if draw.function == "random_dropout":
            return function(seed=self._seed, **draw_arguments(draw, given, args[0].dtype, ()), **place)
        # Torch's own draw provides the dtype, shape and memory of the result.
        result = func(*args, **kwargs)
        arguments = draw_arguments(draw, given, result.dtype, result.shape)
        return result.copy_(function(seed=self._seed, **arguments, **place, device=result.device))


def _refuse_other_draws(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError for an op that draws but is not in `DRAWS`; fused attention draws only for dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return
    if arguments_by_name(func, args, kwargs).get("dropout_p") != 0:
        raise RuntimeError(
            f"{func} draws random numbers that cannot be drawn shard by shard, as a plan would; attention with dropout"
            " can, with torch.nn.attention.SDPBackend.MATH"
        )
