"""Ops that work element by element."""

from __future__ import annotations

from collections.abc import Iterator

from .common import rows
from .spec import OpSpec


def elementwise_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("add.Tensor sub.Tensor", "self other", linear="self+other")
    yield from rows("add.Scalar sub.Scalar rsub.Scalar fmod.Scalar remainder.Scalar", "self")
    yield from rows("pow.Scalar", "exponent")
    yield from rows("pow.Tensor_Tensor", "self exponent")
    yield from rows("mul.Tensor", "self other", linear="self other")
    yield from rows("mul.Scalar div.Scalar neg", "self", linear="self")
    yield from rows("div.Tensor", "self other", linear="self")
    yield from rows("where.self", "condition self other", linear="self+other")
    yield from rows("masked_fill.Scalar", "self mask")
    yield from rows("minimum maximum floor_divide div.Tensor_mode atan2", "self other")
    yield from rows("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", "self other")
    yield from rows("logical_and logical_or logical_xor bitwise_and.Tensor bitwise_or.Tensor", "self other")
    yield from rows("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", "self")
    yield from rows(
        "exp log log1p expm1 sqrt rsqrt reciprocal sin cos tanh sigmoid relu silu gelu erf abs sign", "self"
    )
    yield from rows(
        "floor ceil round logical_not bitwise_not isnan isinf softplus hardtanh leaky_relu elu", "self"
    )
    yield from rows("pow.Tensor_Scalar clamp clamp_min clamp_max", "self")
    yield from rows("sigmoid_backward tanh_backward", "grad_output output", linear="grad_output")
    yield from rows("gelu_backward silu_backward", "grad_output self", linear="grad_output")
    yield from rows("threshold_backward", "grad_output self", linear="grad_output")
    yield from rows(
        "hardtanh_backward softplus_backward leaky_relu_backward", "grad_output self", linear="grad_output"
    )
    yield from rows("clone _to_copy", "self", linear="self")
    yield from rows("detach alias", "self", linear="self", view=True)
    yield from rows("zeros_like ones_like full_like empty_like", "self")
