"""
Map each of torch's random ops to a function of `random_ops` and its arguments.

Capture rewrites graphs by this table, and `counter_random` draws by it in eager PyTorch, so both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch._ops import OpOverload
from torch.fx.node import Argument

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    """
    The draw of a random op.

    Args:
        function: name of the function in `random_ops`.
        arguments: argument of the function -> number, or name of the op's argument with the value.
        like: name of the op's argument that has the shape of the result, if any.
    """

    function: str
    arguments: Mapping[str, str | float]
    like: str = ""


_UNIT: Mapping[str, str | float] = {"low": 0.0, "high": 1.0}
_STANDARD: Mapping[str, str | float] = {"mean": 0.0, "std": 1.0}

DRAWS: dict[OpOverload, Draw] = {
    aten.native_dropout.default: Draw("random_dropout", {"p": "p"}, "input"),
    aten.bernoulli.default: Draw("random_bernoulli", {"p": "self"}),
    aten.bernoulli.p: Draw("random_bernoulli", {"p": "p"}, "self"),
    aten.bernoulli.Tensor: Draw("random_bernoulli", {"p": "p"}),
    aten.bernoulli_.float: Draw("random_bernoulli", {"p": "p"}, "self"),
    aten.bernoulli_.Tensor: Draw("random_bernoulli", {"p": "p"}),
    aten.rand.default: Draw("random_uniform", _UNIT),
    aten.rand_like.default: Draw("random_uniform", _UNIT, "self"),
    aten.uniform.default: Draw("random_uniform", {"low": "from", "high": "to"}, "self"),
    aten.uniform_.default: Draw("random_uniform", {"low": "from", "high": "to"}, "self"),
    aten.randn.default: Draw("random_normal", _STANDARD),
    aten.randn_like.default: Draw("random_normal", _STANDARD, "self"),
    aten.normal.float_float: Draw("random_normal", {"mean": "mean", "std": "std"}),
    aten.normal_functional.default: Draw("random_normal", {"mean": "mean", "std": "std"}, "self"),
    aten.normal_.default: Draw("random_normal", {"mean": "mean", "std": "std"}, "self"),
    aten.exponential.default: Draw("random_exponential", {"lambd": "lambd"}, "self"),
    aten.exponential_.default: Draw("random_exponential", {"lambd": "lambd"}, "self"),
    aten.randint.default: Draw("random_integers", {"low": 0, "high": "high"}),
    aten.randint.low: Draw("random_integers", {"low": "low", "high": "high"}),
    aten.randint_like.default: Draw("random_integers", {"low": 0, "high": "high"}, "self"),
    aten.randint_like.low_dtype: Draw("random_integers", {"low": "low", "high": "high"}, "self"),
    aten.random.to: Draw("random_integers", {"low": 0, "high": "to"}, "self"),
    aten.random_.to: Draw("random_integers", {"low": 0, "high": "to"}, "self"),
}
"""The random ops that can be drawn shard by shard; in-place ops occur only in eager PyTorch."""


def arguments_by_name(
    target: OpOverload, args: Sequence[Argument], kwargs: Mapping[str, Argument]
) -> dict[str, Argument]:
    """Return a call's arguments by schema name, including defaults."""
    schema = target._schema.arguments
    named = {argument.name: argument.default_value for argument in schema}
    named |= dict(zip((argument.name for argument in schema), args, strict=False))
    return named | dict(kwargs)


def draw_arguments(
    draw: Draw, given: Mapping[str, Argument], dtype: torch.dtype, size: Sequence[int]
) -> dict[str, Argument]:
    """
    Return the arguments of a draw's function, without seed and stream.

    Args:
        given: arguments of the torch op, by name.
        dtype: dtype of the result.
        size: shape of the result.
    """
    chosen = {name: given[value] if isinstance(value, str) else value for name, value in draw.arguments.items()}
    if draw.function == "random_dropout":
        return {"input": given[draw.like], **chosen}
    return {**chosen, "like": given.get(draw.like), "dtype": dtype, "size": list(size)}


def draws_nothing(target: object, given: Mapping[str, object]) -> bool:
    """Return whether a call of a random op draws nothing: a dropout with probability 0 or 1, or in eval mode."""
    return target is aten.native_dropout.default and (given["p"] in (0, 1) or given["train"] is False)
