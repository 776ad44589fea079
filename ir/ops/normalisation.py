"""Normalisations."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import named, rows, wanted_results
from .spec import OpInstance, OpSpec, Shape


def layer_norm(op: OpInstance) -> Rule:
    """(input, weight?, bias?) -> (output, mean, rstd): the normalised dims stay whole."""
    value, sizes = named(op.operands[0])
    lead = len(value) - len(op.argument("normalized_shape"))
    inner = value[lead:]
    statistics = (*value[:lead], *(() for _ in inner))
    operands = (value, *(inner for _ in op.operands[1:]))
    return Rule(
        operands, (value, statistics, statistics), sizes, replicated=frozenset(dim[0] for dim in inner)
    )


def layer_norm_backward(op: OpInstance) -> Rule:
    """(grad_out, input, mean, rstd, weight?, bias?) -> (grad_input, grad_weight, grad_bias)."""
    value, sizes = named(op.operands[0])
    lead = len(value) - len(op.argument("normalized_shape"))
    inner = value[lead:]
    statistics: Value = (*value[:lead], *(() for _ in inner))
    operands = (value, value, statistics, statistics, *(inner for _ in op.operands[4:]))
    results = tuple(v if wanted else () for v, wanted in zip((value, inner, inner), wanted_results(op), strict=True))
    outer = [dim[0] for dim in value[:lead]]
    return Rule(
        operands, results, sizes, dict.fromkeys(outer, Reduction.SUM), frozenset(dim[0] for dim in inner)
    )


def batch_norm(op: OpInstance) -> Rule:
    """Statistics over batch and space: only channels may be split."""
    return _channels(op)


def _channels(op: OpInstance) -> Rule:
    """Every value of two dims or more has its channels at dim 1, every vector is of channels."""
    sizes: dict[str, int] = {"c": op.operands[0][1]}

    def value(prefix: str, shape: Shape) -> Value:
        if len(shape) == 1:
            if shape[0] == sizes["c"]:
                return (("c",),)
            sizes[f"{prefix}0"] = shape[0]
            return ((f"{prefix}0",),)
        dims, more = named(shape, prefix)
        sizes.update({f: n for f, n in more.items() if f != f"{prefix}1"})
        return tuple(("c",) if i == 1 else dim for i, dim in enumerate(dims))

    operands = tuple(value(f"o{i}_", shape) for i, shape in enumerate(op.operands))
    results = tuple(value(f"r{i}_", shape) for i, shape in enumerate(op.results))
    return Rule(operands, results, sizes, replicated=frozenset(sizes) - {"c"})


def normalisation_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("native_layer_norm", "input weight bias", layer_norm, results=3)
    yield from rows(
        "native_layer_norm_backward",
        "grad_out input mean rstd weight bias",
        layer_norm_backward,
        linear="grad_out",
        results=3,
    )
    yield from rows(
        "_native_batch_norm_legit_functional",
        "input weight bias running_mean running_var",
        batch_norm,
        results=5,
    )
    yield from rows(
        "native_batch_norm_backward",
        "grad_out input weight running_mean running_var save_mean save_invstd",
        batch_norm,
        linear="grad_out",
        results=3,
    )
