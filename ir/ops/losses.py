"""Losses over class scores."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import rows
from .spec import OpInstance, OpSpec, Shape


def nll_loss(op: OpInstance) -> Rule:
    """
    (scores [b, c], target [b], weight? [c]) -> (loss, total_weight); a mean's parts do not add up.

    Where classes are split, each device counts the labels of its own.
    """
    scores, target = _scores(op.operands[0])
    sizes = _score_sizes(op.operands[0])
    kind = op.argument("reduction")
    loss: Value = target if kind == 0 else ()
    operands: tuple[Value, ...] = (scores, target, (("c",),))[: len(op.operands)]
    whole = frozenset(sizes if kind == 1 else ())
    return Rule(operands, (loss, ()), sizes, dict.fromkeys(sizes, Reduction.SUM), whole, indexed={"c": 1})


def nll_loss_backward(op: OpInstance) -> Rule:
    """(grad, scores, target, weight?, total_weight) -> grad_scores."""
    scores, target = _scores(op.operands[1])
    sizes = _score_sizes(op.operands[1])
    loss: Value = target if op.argument("reduction") == 0 else ()
    weight: tuple[Value, ...] = ((("c",),),) if len(op.operands) == 5 else ()
    return Rule((loss, scores, target, *weight, ()), (scores,), sizes, indexed={"c": 2})


def _scores(shape: Shape) -> tuple[Value, Value]:
    return ((("b",), ("c",)), (("b",),)) if len(shape) == 2 else ((("c",),), ())


def _score_sizes(shape: Shape) -> dict[str, int]:
    return {"b": shape[0], "c": shape[1]} if len(shape) == 2 else {"c": shape[0]}


def losses_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("nll_loss_forward", "self target weight", nll_loss, results=2)
    yield from rows(
        "nll_loss_backward",
        "grad_output self target weight total_weight",
        nll_loss_backward,
        linear="grad_output",
    )
