"""Normalisations."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import named, rows, wanted_results
from .spec import OpInstance, OpSpec, RuleFunction, Shape


def layer_norm(op: OpInstance) -> Rule:
    """(input, weight?, bias?) -> (output, mean, rstd): the normalised dims are not split."""
    value, sizes = named(op.operands[0])
    lead = len(value) - len(op.argument("normalized_shape"))
    inner = value[lead:]
    statistics = (*value[:lead], *(() for _ in inner))
    operands = (value, *(inner for _ in op.operands[1:]))
    return Rule(operands, (value, statistics, statistics), sizes, replicated=frozenset(dim[0] for dim in inner))


def layer_norm_backward(op: OpInstance) -> Rule:
    """(grad_out, input, mean, rstd, weight?, bias?) -> (grad_input, grad_weight, grad_bias)."""
    value, sizes = named(op.operands[0])
    lead = len(value) - len(op.argument("normalized_shape"))
    inner = value[lead:]
    statistics: Value = (*value[:lead], *(() for _ in inner))
    operands = (value, value, statistics, statistics, *(inner for _ in op.operands[4:]))
    results = tuple(v if wanted else () for v, wanted in zip((value, inner, inner), wanted_results(op), strict=True))
    outer = [dim[0] for dim in value[:lead]]
    return Rule(operands, results, sizes, dict.fromkeys(outer, Reduction.SUM), frozenset(dim[0] for dim in inner))


def batch_norm(training: str | None, *, backward: bool = False) -> RuleFunction:
    """
    Return the rule of a batch norm. Channels, at dim 1 of images and the only dim of vectors, may be split.

    If the argument `training` says that the statistics are given instead of computed from the batch (None: always
    given), all other dims may be split too; the gradients of weight and bias are then sums over these dims.
    """

    def rule(op: OpInstance) -> Rule:
        image, sizes = named(op.operands[0])
        image, sizes["c"] = (image[0], ("c",), *image[2:]), sizes.pop("d1")
        fixed: set[str] = set()

        def value(prefix: str, shape: Shape) -> Value:
            if len(shape) > 1:
                return image
            if shape == (sizes["c"],):
                return (("c",),)
            dims, more = named(shape, prefix)
            sizes.update(more)
            fixed.update(more)
            return dims

        operands = tuple(value(f"o{i}_", shape) for i, shape in enumerate(op.operands))
        results = tuple(value(f"r{i}_", shape) for i, shape in enumerate(op.results))
        others = [dim[0] for dim in image if dim != ("c",)]
        if training is not None and op.argument(training, True):
            return Rule(operands, results, sizes, replicated=frozenset({*fixed, *others}))
        reductions = dict.fromkeys(others, Reduction.SUM) if backward else {}
        return Rule(operands, results, sizes, reductions, frozenset(fixed))

    return rule


def group_norm(op: OpInstance) -> Rule:
    """(input [n, g*c, ..], weight? [g*c], bias?) -> (output, mean [n, g], rstd): groups may be split."""
    image, channels, statistics, sizes, fixed = _groups(op.operands[0], op.results[1])
    operands = (image, *(channels for _ in op.operands[1:]))
    return Rule(operands, (image, statistics, statistics), sizes, replicated=fixed)


def group_norm_backward(op: OpInstance) -> Rule:
    """(grad_out, input, mean, rstd, weight?) -> (grad_input, grad_weight, grad_bias)."""
    image, channels, statistics, sizes, fixed = _groups(op.operands[0], op.operands[2])
    operands = (image, image, statistics, statistics, *(channels for _ in op.operands[4:]))
    kinds = (image, channels, channels)
    results = tuple(v if wanted else () for v, wanted in zip(kinds, wanted_results(op), strict=True))
    return Rule(operands, results, sizes, {"n": Reduction.SUM}, fixed)


def _groups(image: Shape, statistics: Shape) -> tuple[Value, Value, Value, dict[str, int], frozenset[str]]:
    """Return dims of images, channel vectors and statistics, the factors' sizes, and the factors that stay whole."""
    groups = statistics[1]
    space, sizes = named(image[2:], "h")
    fixed = frozenset({*sizes, "c"})
    sizes |= {"n": image[0], "g": groups, "c": image[1] // groups}
    channels = ("g", "c")
    return (("n",), channels, *space), (channels,), (("n",), ("g",)), sizes, fixed


def weight_norm(op: OpInstance) -> Rule:
    """(v, g) -> (g * v / norm, norm): norms over all dims except `dim`."""
    return _weights(op, (0,), op.argument("dim", 0))


def weight_norm_backward(op: OpInstance) -> Rule:
    """(grad_w, v, g, norms) -> (grad_v, grad_g)."""
    return _weights(op, (0, 1), op.argument("dim"))


def _weights(op: OpInstance, full: Collection[int], dim: int) -> Rule:
    """Operands `full` and the first result have the weight's shape; all others have one number per index of `dim`."""
    value, sizes = named(op.operands[0])
    at = dim % len(value)
    number = tuple(factors if i == at else () for i, factors in enumerate(value))
    operands = tuple(value if i in full else number for i in range(len(op.operands)))
    fixed = frozenset(factors[0] for i, factors in enumerate(value) if i != at)
    return Rule(operands, (value, number), sizes, replicated=fixed)


BATCH_NORMS = frozenset(
    {
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit.no_stats",
        "_native_batch_norm_legit_no_training",
        "native_batch_norm_backward",
    }
)
"""Ops that compute statistics of the batch, or their gradients, over all rows in any order."""

_STATISTICS = "40*each"
"""Operations per element of a batch norm, including the statistics of the batch."""

_GROUP_ARGUMENTS = {"N": "factor n", "C": "operand0[1]", "group": "factor g"}


def _batch_rows() -> Iterator[OpSpec]:
    yield from rows(
        "_native_batch_norm_legit_functional",
        "input weight bias running_mean running_var",
        batch_norm("training"),
        flops=_STATISTICS,
        results=5,
    )
    yield from rows(
        "_native_batch_norm_legit.no_stats",
        "input weight bias",
        batch_norm("training"),
        flops=_STATISTICS,
        results=3,
    )
    yield from rows(
        "_native_batch_norm_legit_no_training",
        "input weight bias running_mean running_var",
        batch_norm(None),
        results=3,
    )
    yield from rows(
        "native_batch_norm_backward",
        "grad_out input weight running_mean running_var save_mean save_invstd",
        batch_norm("train", backward=True),
        linear="grad_out",
        flops=_STATISTICS,
        results=3,
    )


def normalisation_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("native_layer_norm", "input weight bias", layer_norm, flops="10*each", results=3)
    yield from rows(
        "native_layer_norm_backward",
        "grad_out input mean rstd weight bias",
        layer_norm_backward,
        linear="grad_out",
        flops="13*each",
        results=3,
    )
    yield from _batch_rows()
    yield from rows(
        "native_group_norm",
        "input weight bias",
        group_norm,
        flops="10*each",
        localize=_GROUP_ARGUMENTS,
        results=3,
        ordered=True,
    )
    yield from rows(
        "native_group_norm_backward",
        "grad_out input mean rstd weight",
        group_norm_backward,
        linear="grad_out",
        flops="13*each",
        localize=_GROUP_ARGUMENTS,
        results=3,
        ordered=True,
    )
    yield from rows("_weight_norm_interface", "v g", weight_norm, results=2, ordered=True)
    yield from rows(
        "_weight_norm_interface_backward",
        "grad_w saved_v saved_g saved_norms",
        weight_norm_backward,
        linear="grad_w",
        results=2,
        ordered=True,
    )
