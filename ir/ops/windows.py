"""Convolutions and pooling: windows over space."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import named, rows, wanted_results
from .spec import OpInstance, OpSpec, Shape


def convolution(op: OpInstance) -> Rule:
    """(input, weight, bias?) -> output: batch and channels may be split, windows not."""
    x, w, y, sizes, whole = _convolved(op, op.operands[0], op.operands[1], op.results[0])
    bias: list[Value] = [(("o",),)] if len(op.operands) > 2 else []
    additive = frozenset({2} if bias else ())
    return Rule((x, w, *bias), (y,), sizes, {"i": Reduction.SUM}, whole, additive=additive)


def convolution_backward(op: OpInstance) -> Rule:
    """(grad_output, input, weight) -> (grad_input, grad_weight, grad_bias)."""
    x, w, y, sizes, whole = _convolved(op, op.operands[1], op.operands[2], op.operands[0])
    results = tuple(v if wanted else () for v, wanted in zip((x, w, (("o",),)), wanted_results(op), strict=True))
    return Rule((y, x, w), results, sizes, {"n": Reduction.SUM, "o": Reduction.SUM}, whole)


def _convolved(
    op: OpInstance, x: Shape, w: Shape, y: Shape
) -> tuple[Value, Value, Value, dict[str, int], frozenset[str]]:
    """
    Input, weight and output of a convolution, the factors' sizes and those that stay whole.

    With groups the channels of input, weight and output are not one another's: all of them stay whole.
    """
    sizes = {"n": x[0], "i": x[1], "o": y[1]}
    windows: list[Value] = []
    for prefix, shape in (("h", x), ("k", w), ("y", y)):
        window, more = named(shape[2:], prefix)
        sizes |= more
        windows.append(window)
    whole = {factor for factor in sizes if factor[0] in "hky"}
    outer, inner = ("i", "o") if op.argument("transposed", False) else ("o", "i")
    if op.argument("groups", 1) != 1:
        inner = "g"
        sizes["g"] = w[1]
        whole |= {"g", "i", "o"}
    before, kernel, after = windows
    values = (("n",), ("i",), *before), ((outer,), (inner,), *kernel), (("n",), ("o",), *after)
    return (*values, sizes, frozenset(whole))


def pooling(op: OpInstance) -> Rule:
    """
    Windows over the last two dims; batch and channels may be split. All operands and results are images.
    """
    images = [*op.operands, *op.results]
    sizes: dict[str, int] = {}
    values: list[Value] = []
    for index, shape in enumerate(images):
        lead, more = named(shape[:-2])
        sizes |= more | {f"w{index}y": shape[-2], f"w{index}x": shape[-1]}
        values.append((*lead, (f"w{index}y",), (f"w{index}x",)))
    whole = frozenset(f for f in sizes if f.startswith("w"))
    count = len(op.operands)
    return Rule(tuple(values[:count]), tuple(values[count:]), sizes, replicated=whole)


def windows_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows(
        "convolution",
        "input weight bias",
        convolution,
        linear="input+bias weight+bias",
        flops="2*n*i*o*k0*k1*y0*y1",
    )
    yield from rows(
        "convolution_backward",
        "grad_output input weight",
        convolution_backward,
        linear="grad_output",
        flops="4*n*i*o*k0*k1*y0*y1",
        localize={"bias_sizes": "result2"},
        results=3,
    )
    yield from rows("max_pool2d_with_indices", "self", pooling, results=2)
    yield from rows(
        "max_pool2d_with_indices_backward", "grad_output self indices", pooling, linear="grad_output"
    )
    yield from rows("avg_pool2d _adaptive_avg_pool2d", "self", pooling, linear="self")
    yield from rows(
        "avg_pool2d_backward _adaptive_avg_pool2d_backward",
        "grad_output self",
        pooling,
        linear="grad_output",
    )
