"""Ops along a dim: softmax, cumulative ops, and reductions."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Dim, Rule
from ..sharding import Reduction
from .common import named, pointwise, rows, wrapped
from .spec import OpInstance, OpSpec, RuleFunction

_SUM, _MAX, _MIN = Reduction.SUM, Reduction.MAX, Reduction.MIN


def along(argument: str) -> RuleFunction:
    """Element by element, but for the dims that `argument` names, which must stay whole (softmax, cumsum, flip)."""

    def rule(op: OpInstance) -> Rule:
        base = pointwise(op)
        whole = wrapped(op.argument(argument), len(op.results[0]))
        return Rule(base.operands, base.results, base.sizes, replicated=frozenset(f"d{d}" for d in whole))

    return rule


def reduction(kind: Reduction | None, results: int = 1) -> RuleFunction:
    """A reduction over `dim`; `kind` is how parts combine, None where they do not."""

    def rule(op: OpInstance) -> Rule:
        shape = op.operands[0]
        value, sizes = named(shape)
        reduced = set(wrapped(op.argument("dim"), len(shape)))
        keep = bool(op.argument("keepdim", False))
        kept: list[Dim] = [
            () if i in reduced else dim for i, dim in enumerate(value) if keep or i not in reduced
        ]
        factors = [f"d{i}" for i in sorted(reduced)]
        reductions = dict.fromkeys(factors, kind) if kind is not None else {}
        whole = frozenset[str]() if kind is not None else frozenset(factors)
        return Rule((value,), (tuple(kept),) * results, sizes, reductions, whole)

    return rule


def triangle(op: OpInstance) -> Rule:
    """`tril` and `triu` look at the indices of the last two dims, which stay whole."""
    value, sizes = named(op.operands[0])
    return Rule((value,), (value,), sizes, replicated=frozenset(dim[0] for dim in value[-2:]))


def reductions_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("_softmax _log_softmax _safe_softmax", "self", along("dim"))
    yield from rows(
        "_softmax_backward_data _log_softmax_backward_data",
        "grad_output output",
        along("dim"),
        linear="grad_output",
    )
    yield from rows("cumsum", "self", along("dim"), linear="self")
    yield from rows("flip", "self", along("dims"), linear="self")
    yield from rows("tril triu", "self", triangle, linear="self")
    yield from rows("sum.dim_IntList sum", "self", reduction(_SUM), linear="self")
    yield from rows("mean.dim mean", "self", reduction(None), linear="self")
    yield from rows("amax", "self", reduction(_MAX))
    yield from rows("amin", "self", reduction(_MIN))
    yield from rows("argmax argmin any.dim all.dim var.correction", "self", reduction(None))
    yield from rows("max.dim min.dim", "self", reduction(None, results=2), results=2)
