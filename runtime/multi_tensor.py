"""
One operation on several tensors at once: `torch._foreach_*`, which a GPU computes in one kernel for any number of
tensors.

If operands differ in dtype or memory layout, torch falls back to one kernel per tensor. The functions below convert
such operands first, as torch's ops on single tensors do inside their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

Argument = Sequence[torch.Tensor] | torch.Tensor | float


def foreach(function: str, first: Sequence[torch.Tensor], *others: Argument, **options: object) -> list[torch.Tensor]:
    """
    Apply `function` to each of several tensors: `foreach("mul", [x, y], [z, w])` is `[x * z, y * w]`.

    Args:
        function: torch's name of the function, without `_foreach_`.
        first: local shards of one dtype.
        others: lists of as many tensors of the same dtype, or one number or scalar tensor for all.
    """
    return list(_function(function)(*_alike(first, (first, *others)), **options))


def foreach_(function: str, first: Sequence[torch.Tensor], *others: Argument, **options: object) -> list[torch.Tensor]:
    """Apply `function` as `foreach` does, and write the results to `first`."""
    _function(f"{function}_")(first, *_alike(first, others), **options)
    return list(first)


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """
    Return the sum of the squares of all elements, a scalar; narrow dtypes are summed in float32.

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
    """Convert arguments so that one GPU kernel can process them; a CPU always processes tensors one by one."""
    if first[0].device.type == "cpu":
        return arguments
    return [_for_kernel(first[0], argument) for argument in arguments]


def _for_kernel(like: torch.Tensor, given: Argument) -> Argument:
    match given:
        case torch.Tensor():
            return given.item() if given.device.type == "cpu" else given.to(like.dtype)
        case float() | int():
            return given
        case _:
            return [tensor.contiguous() for tensor in given]
