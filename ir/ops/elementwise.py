"""Ops that work element by element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..rules import Rule
from .common import linear_where_zero, pointwise, rows
from .spec import OpInstance, OpSpec, RuleFunction


def cast(op: OpInstance) -> Rule:
    """The rule of a change of dtype: rounding to integers or booleans is not linear."""
    is_inexact = str(op.argument("dtype", "float")).startswith(("float", "bfloat", "complex"))
    return replace(pointwise(op), linear=(frozenset({0}),) if is_inexact else ())


_FUNCTION, _SERIES, _MASK = "25*each", "100*each", "20*each"
"""Operations per element of exponentials and similar functions, of special functions, and of ops on booleans."""

_UNREAD = {"self": ""}

ELEMENTWISE: frozenset[RuleFunction] = frozenset({pointwise, cast})
"""Rules of ops that are well defined on parts without elements."""


def other_gelu(op: OpInstance) -> float:
    """Return the cost of the approximation by `tanh`, relative to the exact function."""
    return 2.2 if op.argument("approximate", "none") == "tanh" else 1.0


def other_power(op: OpInstance) -> float:
    """Return the cost of a power that is not computed by products and roots, relative to one that is."""
    return 1.0 if op.argument("exponent") in (-2, -1, -0.5, 0, 0.5, 1, 2, 3) else 7.0


def _unary_rows() -> Iterator[OpSpec]:
    for names in (
        "reciprocal abs sign sgn frac trunc floor ceil round round.decimals nan_to_num",
        "relu hardtanh leaky_relu hardswish hardsigmoid threshold hardshrink softshrink clamp clamp_min clamp_max",
        "logical_not bitwise_not isnan isinf isfinite isposinf isneginf signbit",
        "add.Scalar sub.Scalar rsub.Scalar fmod.Scalar remainder.Scalar floor_divide.Scalar div.Scalar_mode",
        "copysign.Scalar bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __lshift__.Scalar __rshift__.Scalar",
        "bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar",
    ):
        yield from rows(names, "self")
    yield from rows("zeros_like ones_like full_like fill.Scalar", "self", reads=_UNREAD)
    yield from rows("empty_like", "self", reads={"self": "", "result0": ""})
    yield from rows("sqrt rsqrt silu sigmoid", "self", flops="10*each")
    yield from rows("pow.Tensor_Scalar", "self", flops="10*each", scale=other_power)
    yield from rows("gelu", "self", flops="18*each", scale=other_gelu)
    yield from rows("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", "self", flops=_MASK)
    for names in (
        "exp exp2 expm1 log log2 log10 log1p sin cos softplus elu celu erf erfc logit xlogy.Scalar_Other special_entr",
        "tan asin acos atan sinh cosh tanh asinh acosh atanh sinc angle mish",
    ):
        yield from rows(names, "self", flops=_FUNCTION)
    for names in (
        "erfinv lgamma digamma mvlgamma polygamma i0 special_i0e special_i1 special_i1e",
        "special_erfcx special_log_ndtr special_ndtri special_bessel_j0 special_bessel_j1",
    ):
        yield from rows(names, "self", flops=_SERIES)
    yield from rows("log_sigmoid_forward frexp.Tensor", "self", flops=_FUNCTION, results=2)
    yield from rows("pow.Scalar", "exponent", flops="70*each")
    yield from rows("xlogy.Scalar_Self", "other", flops=_FUNCTION)
    yield from rows("isin.Tensor_Scalar", "elements", flops=_MASK)
    yield from rows("mul.Scalar div.Scalar neg clone lift_fresh_copy _conj_physical", "self", linear="self")
    yield from rows("rad2deg deg2rad", "self", linear="self")
    yield from rows("detach alias", "self", linear="self", view=True)
    yield from rows("_to_copy", "self", cast)


def _binary_rows() -> Iterator[OpSpec]:
    for names in (
        "minimum maximum fmin fmax floor_divide div.Tensor_mode remainder.Tensor fmod.Tensor copysign.Tensor nextafter",
        "bitwise_left_shift.Tensor bitwise_right_shift.Tensor __lshift__.Tensor __rshift__.Tensor",
        "logical_and logical_or logical_xor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor",
    ):
        yield from rows(names, "self other")
    compared = "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor"
    yield from rows(compared, "self other", flops=_MASK, decides=True)
    yield from rows("atan2 hypot logaddexp logaddexp2 xlogy.Tensor special_xlog1py", "self other", flops=_FUNCTION)
    yield from rows("special_zeta igamma igammac gcd lcm", "self other", flops=_SERIES)
    yield from rows("add.Tensor sub.Tensor rsub.Tensor", "self other", linear="self+other")
    yield from rows("mul.Tensor", "self other", linear="self other")
    yield from rows("div.Tensor ldexp.Tensor", "self other", linear="self")
    yield from rows("pow.Tensor_Tensor", "self exponent", flops="70*each")
    yield from rows("heaviside", "self values")
    yield from rows("_prelu_kernel", "self weight")
    yield from rows("polar", "abs angle", linear="abs", flops=_FUNCTION)
    yield from rows("complex", "real imag", linear="real+imag")
    yield from rows("clamp_min.Tensor", "self min")
    yield from rows("clamp_max.Tensor", "self max")
    # These round to the dtype of the tensor that they overwrite, so partial sums must not pass.
    yield from rows("copy", "self src", reads=_UNREAD)
    yield from rows("fill.Tensor", "self value", reads=_UNREAD)
    yield from rows("masked_fill.Scalar", "self mask", linear_where_zero(pointwise, "value"), flops=_MASK)


def _ternary_rows() -> Iterator[OpSpec]:
    yield from rows("where.self", "condition self other", linear="self+other", flops=_MASK)
    yield from rows("clamp.Tensor", "self min max")
    yield from rows("masked_fill.Tensor", "self mask value", linear="self+value", flops=_MASK)
    yield from rows("lerp.Scalar", "self end", linear="self+end")
    yield from rows("lerp.Tensor", "self end weight", linear="self+end")
    yield from rows("addcmul", "self tensor1 tensor2", linear="self+tensor1 self+tensor2")
    yield from rows("addcdiv", "self tensor1 tensor2", linear="self+tensor1")


def _gradient_rows() -> Iterator[OpSpec]:
    yield from rows("sigmoid_backward tanh_backward", "grad_output output", linear="grad_output")
    for names, flops in (
        ("threshold_backward hardtanh_backward leaky_relu_backward softshrink_backward", ""),
        ("hardswish_backward hardsigmoid_backward", ""),
        ("silu_backward", "12*each"),
        ("mish_backward softplus_backward logit_backward", _FUNCTION),
    ):
        yield from rows(names, "grad_output self", linear="grad_output", flops=flops)
    yield from rows("gelu_backward", "grad_output self", linear="grad_output", flops="22*each", scale=other_gelu)
    yield from rows("hardshrink_backward", "grad_out self", linear="grad_out")
    yield from rows("elu_backward", "grad_output self_or_result", linear="grad_output", flops=_FUNCTION)
    yield from rows("log_sigmoid_backward", "grad_output self buffer", linear="grad_output", flops=_FUNCTION)
    yield from rows("_prelu_kernel_backward", "grad_output self weight", linear="grad_output", results=2)


def elementwise_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from _unary_rows()
    yield from _binary_rows()
    yield from _ternary_rows()
    yield from _gradient_rows()
