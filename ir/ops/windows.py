"""Convolutions and pooling: windows over space."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import named, rows, wanted_part, wanted_results, windows
from .spec import OpInstance, OpSpec, Shape


def convolution(op: OpInstance) -> Rule:
    """(input, weight, bias?) -> output: batch, channels and groups of channels may be split, windows may not."""
    x, w, y, sizes, whole = _convolved(op, op.operands[0], op.operands[1], op.results[0])
    bias: list[Value] = [y[1:2]] if len(op.operands) > 2 else []
    additive = frozenset({2} if bias else ())
    return Rule((x, w, *bias), (y,), sizes, {"i": Reduction.SUM}, whole, additive=additive)


def convolution_backward(op: OpInstance) -> Rule:
    """(grad_output, input, weight) -> (grad_input, grad_weight, grad_bias)."""
    x, w, y, sizes, whole = _convolved(op, op.operands[1], op.operands[2], op.operands[0])
    results = tuple(v if wanted else () for v, wanted in zip((x, w, y[1:2]), wanted_results(op), strict=True))
    return Rule((y, x, w), results, sizes, {"n": Reduction.SUM, "o": Reduction.SUM}, whole)


def _convolved(
    op: OpInstance, x: Shape, w: Shape, y: Shape
) -> tuple[Value, Value, Value, dict[str, int], frozenset[str]]:
    """
    Return the dims of input, weight and output of a convolution, the factors' sizes, and the factors that stay whole.

    Each group of channels is convolved separately: the factor of groups leads the channels of all three.
    """
    groups = op.argument("groups", 1)
    sizes = {"n": x[0], "g": groups, "i": x[1] // groups, "o": y[1] // groups}
    spaces: list[Value] = []
    # Windows belong to the smaller image (y): the input of a transposed convolution, the output of others.
    transposed = op.argument("transposed", False)
    names = "ykh" if transposed else "hky"
    for prefix, shape in zip(names, (x, w, y), strict=True):
        window, more = named(shape[2:], prefix)
        sizes |= more
        spaces.append(window)
    whole = frozenset(factor for factor in sizes if factor[0] in "hky")
    outer, inner = ("i", "o") if transposed else ("o", "i")
    before, kernel, after = spaces
    weight = (("g", outer), (inner,), *kernel)
    return (("n",), ("g", "i"), *before), weight, (("n",), ("g", "o"), *after), sizes, whole


def _convolution_rows() -> Iterator[OpSpec]:
    yield from rows(
        "convolution",
        "input weight bias",
        convolution,
        linear="input+bias weight+bias",
        flops="2*n*g*i*o*k0*k1*k2*y0*y1*y2",
        localize={"groups": "factor g"},
    )
    yield from rows(
        "convolution_backward",
        "grad_output input weight",
        convolution_backward,
        linear="grad_output",
        flops="4*n*g*i*o*k0*k1*k2*y0*y1*y2",
        scale=wanted_part,
        localize={"bias_sizes": "result2", "groups": "factor g"},
        results=3,
    )


_POOL = "40*each"
"""Operations of pooling, which reads windows element by element."""


def _max_pool_rows() -> Iterator[OpSpec]:
    for dims in (2, 3):
        yield from rows(
            f"max_pool{dims}d_with_indices adaptive_max_pool{dims}d",
            "self",
            windows(dims),
            flops=_POOL,
            results=2,
        )
        yield from rows(
            f"max_pool{dims}d_with_indices_backward adaptive_max_pool{dims}d_backward",
            "grad_output self indices",
            windows(dims),
            linear="grad_output",
            flops=_POOL,
            ordered=dims == 3,
        )


def _average_pool_rows() -> Iterator[OpSpec]:
    for dims in (2, 3):
        yield from rows(f"avg_pool{dims}d _adaptive_avg_pool{dims}d", "self", windows(dims), linear="self", flops=_POOL)
        yield from rows(
            f"avg_pool{dims}d_backward _adaptive_avg_pool{dims}d_backward",
            "grad_output self",
            windows(dims),
            linear="grad_output",
            flops=_POOL,
        )


def windows_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from _convolution_rows()
    yield from _max_pool_rows()
    yield from _average_pool_rows()
