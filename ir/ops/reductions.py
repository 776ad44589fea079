"""Ops along a dim: softmax, cumulative ops, and reductions."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Dim, Rule
from ..sharding import Reduction
from .common import along, broadcast, broadcast_shape, named, rows, together, wrapped
from .spec import OpInstance, OpSpec, RuleFunction

_STEPS, _MOMENTS, _ORDER = "25*each", "140*each", "1000*each"
"""Operations per element of scans, of variances, and of sorts."""

_SUM, _MAX, _MIN = Reduction.SUM, Reduction.MAX, Reduction.MIN


def reduction(kind: Reduction | None, results: int = 1, default: int | None = None) -> RuleFunction:
    """
    Return the rule of a reduction over `dim`; `kind` combines the results of parts, or is None if they do not combine.

    `default` is the dim if the argument is missing, or None for all dims.
    """

    def rule(op: OpInstance) -> Rule:
        shape = op.operands[0]
        value, sizes = named(shape)
        reduced = set(wrapped(op.argument("dim", default), len(shape)))
        keep = bool(op.argument("keepdim", False))
        kept: list[Dim] = [() if i in reduced else dim for i, dim in enumerate(value) if keep or i not in reduced]
        factors = [f"d{i}" for i in sorted(reduced)]
        reductions = dict.fromkeys(factors, kind) if kind is not None else {}
        fixed = frozenset[str]() if kind is not None else frozenset(factors)
        return Rule((value,), (tuple(kept),) * results, sizes, reductions, fixed)

    return rule


def counted(op: OpInstance) -> Rule:
    """The rule of `histc`: the counts of parts add up only if the bounds are given, not taken from each part."""
    value, sizes = named(op.operands[0])
    sizes["b"] = op.results[0][0]
    bounds = op.argument("min", 0) != op.argument("max", 0)
    reductions = dict.fromkeys((dim[0] for dim in value), Reduction.SUM) if bounds else {}
    return Rule((value,), ((("b",),),), sizes, reductions, frozenset({"b"} if bounds else sizes))


def largest(op: OpInstance) -> Rule:
    """The rule of `topk` along `dim`, which is the last dim by default."""
    return together(op, wrapped(op.argument("dim", -1), len(op.operands[0])))


def distance(op: OpInstance) -> Rule:
    """The rule of one number from two tensors that broadcast to one shape; no dim is split."""
    shape = broadcast_shape(op.operands)
    value, sizes = named(shape)
    operands = tuple(broadcast(operand, value, sizes) for operand in op.operands)
    return Rule(operands, ((),), sizes, replicated=frozenset(sizes))


def triangle(op: OpInstance) -> Rule:
    """The rule of `tril` and `triu`, which depend on the indices of the last two dims, so these are not split."""
    value, sizes = named(op.operands[0])
    return Rule((value,), (value,), sizes, replicated=frozenset(dim[0] for dim in value[-2:]))


def reductions_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from _along_rows()
    yield from rows("sum.dim_IntList sum", "self", reduction(_SUM), linear="self")
    yield from rows("nansum count_nonzero count_nonzero.dim_IntList", "self", reduction(_SUM))
    yield from rows("amax max", "self", reduction(_MAX))
    yield from rows("amin min", "self", reduction(_MIN))
    # The results of parts do not combine, or only by a reduction that collectives lack (products; any, all).
    yield from rows("mean.dim mean", "self", reduction(None), linear="self")
    yield from rows("argmax argmin", "self", reduction(None), flops=_STEPS, decides=True)
    yield from rows("any any.dim any.dims all all.dim all.dims", "self", reduction(None), flops=_STEPS)
    yield from rows("prod prod.dim_int", "self", reduction(None))
    yield from rows("logsumexp", "self", reduction(None), flops=_STEPS)
    yield from rows("var.correction std.correction", "self", reduction(None), flops=_MOMENTS)
    yield from rows("linalg_vector_norm norm.ScalarOpt_dim norm.Scalar", "self", reduction(None))
    yield from rows("median nanmedian", "self", reduction(None), flops=_ORDER)
    yield from rows("max.dim min.dim", "self", reduction(None, 2), flops=_STEPS, results=2, decides=True)
    yield from rows("median.dim nanmedian.dim", "self", reduction(None, 2), flops=_ORDER, results=2, decides=True)
    yield from rows("var_mean.correction std_mean.correction", "self", reduction(None, 2), flops=_MOMENTS, results=2)
    yield from rows("aminmax", "self", reduction(None, 2), results=2)
    yield from rows("kthvalue mode", "self", reduction(None, 2, default=-1), flops=_ORDER, results=2, decides=True)
    yield from rows("dist", "self other", distance)
    yield from rows("histc", "self", counted)
    yield from rows("topk", "self", largest, flops="50*each", results=2, decides=True)


def _along_rows() -> Iterator[OpSpec]:
    yield from rows("_softmax _log_softmax _safe_softmax", "self", along("dim"), flops="16*each")
    for name, flops in (("_softmax_backward_data", "5*each"), ("_log_softmax_backward_data", "12*each")):
        yield from rows(name, "grad_output output", along("dim"), linear="grad_output", flops=flops)
    yield from rows("cumsum", "self", along("dim"), linear="self", flops=_STEPS)
    yield from rows("cumprod logcumsumexp", "self", along("dim"), flops=_STEPS)
    yield from rows("cummax cummin", "self", along("dim"), flops=_STEPS, results=2, decides=True)
    yield from rows("sort sort.stable", "self", along("dim", -1), flops=_ORDER, results=2, decides=True)
    yield from rows("argsort", "self", along("dim", -1), flops=_ORDER, decides=True)
    yield from rows("flip", "self", along("dims"), linear="self")
    yield from rows("roll", "self", along("dims"), linear="self")
    yield from rows("tril triu", "self", triangle, linear="self")
