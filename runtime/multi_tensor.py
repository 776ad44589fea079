"""
One operation on several tensors at once: `torch._foreach_*`, one kernel on a GPU for as many as there are.

torch falls back to a kernel for each tensor where operands differ in dtype, or lie otherwise in memory; so what would
make it do so is changed beforehand, as its ops on single tensors do within a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

Argument = Sequence[torch.Tensor] | torch.Tensor | float


def foreach(function: str, first: Sequence[torch.Tensor], *others: Argument, **options: object) -> list[torch.Tensor]:
    """
    What `function` gives for each of several tensors: `foreach("mul", [x, y], [z, w])` is `[x * z, y * w]`.

    Args:
        function: its name in torch, without `_foreach_`.
        first: local shards of one dtype.
        others: as many tensors of the same dtype, or one number or tensor of no dims for all.
    """
    return list(_function(function)(*_alike(first, (first, *others)), **options))


def foreach_(function: str, first: Sequence[torch.Tensor], *others: Argument, **options: object) -> list[torch.Tensor]:
    """The same, written over `first`."""
    _function(f"{function}_")(first, *_alike(first, others), **options)
    return list(first)


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """
    The sum of the squares of all elements: a number, of narrow dtypes in float32.

    Args:
        tensors: local shards of one dtype; any may be empty.
    """
    dtype = torch.float32 if tensors[0].dtype in (torch.bfloat16, torch.float16) else None
    norms = _function("norm")(list(tensors), 2, dtype)
    return torch.stack(norms).square_().sum()


@cache
def _function(name: str) -> Callable[..., list[torch.Tensor]]:
    return getattr(torch, f"_foreach_{name}")


def _alike(first: Sequence[torch.Tensor], arguments: Sequence[Argument]) -> Sequence[Argument]:
    """Arguments that torch's kernels of a GPU take together; elsewhere it goes over the tensors in any case."""
    if first[0].device.type == "cpu":
        return arguments
    return [_for_kernel(first[0], each) for each in arguments]


def _for_kernel(like: torch.Tensor, given: Argument) -> Argument:
    match given:
        case torch.Tensor():
            return given.item() if given.device.type == "cpu" else given.to(like.dtype)
        case float() | int():
            return given
        case _:
            return [each.contiguous() for each in given]
