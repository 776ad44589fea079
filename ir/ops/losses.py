"""Losses over class scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import broadcast, broadcast_shape, named, pointwise, rows, unsplit, whole
from .spec import OpInstance, OpSpec, Shape

_NONE, _MEAN = 0, 1
"""ATen's numbers for the reduction of a loss; 2 is a sum."""


def nll_loss(op: OpInstance) -> Rule:
    """
    (scores [b, c], target [b], weight? [c]) -> (loss, total_weight); the means of parts do not add up.

    If classes are split, each device counts the labels of its classes.
    """
    scores, target = _scores(op.operands[0])
    sizes = _score_sizes(op.operands[0])
    kind = op.argument("reduction")
    loss: Value = target if kind == _NONE else ()
    operands: tuple[Value, ...] = (scores, target, (("c",),))[: len(op.operands)]
    fixed = frozenset(sizes if kind == _MEAN else ())
    return Rule(operands, (loss, ()), sizes, dict.fromkeys(sizes, Reduction.SUM), fixed, indexed={"c": 1})


def nll_loss_backward(op: OpInstance) -> Rule:
    """(grad, scores, target, weight?, total_weight) -> grad_scores."""
    scores, target = _scores(op.operands[1])
    sizes = _score_sizes(op.operands[1])
    loss: Value = target if op.argument("reduction") == _NONE else ()
    weight: tuple[Value, ...] = ((("c",),),) if len(op.operands) == 5 else ()
    return Rule((loss, scores, target, *weight, ()), (scores,), sizes, indexed={"c": 2})


def elementwise_loss(op: OpInstance) -> Rule:
    """The rule of a loss per element of tensors that broadcast, or of its sum; the means of parts do not add up."""
    kind = op.argument("reduction", _MEAN)
    if kind == _NONE:
        return pointwise(op)
    value, sizes = named(broadcast_shape(op.operands))
    operands = tuple(broadcast(shape, value, sizes) for shape in op.operands)
    reductions = dict.fromkeys(sizes, Reduction.SUM)
    return Rule(operands, ((),), sizes, reductions, frozenset(sizes if kind == _MEAN else ()))


def elementwise_loss_backward(op: OpInstance) -> Rule:
    """(grad, self, target, ..) -> the gradient of self; for a mean, it is divided by the number of all elements."""
    rule = pointwise(op)
    fixed = rule.sizes if op.argument("reduction", _MEAN) == _MEAN else ()
    return replace(rule, replicated=frozenset(fixed))


def _scores(shape: Shape) -> tuple[Value, Value]:
    """Return the dims of class scores [c], [b, c] or [b, c, ..], and of their labels."""
    if len(shape) == 1:
        return (("c",),), ()
    space = tuple((f"h{i}",) for i in range(len(shape) - 2))
    return (("b",), ("c",), *space), (("b",), *space)


def _score_sizes(shape: Shape) -> dict[str, int]:
    scores, _ = _scores(shape)
    return {dim[0]: size for dim, size in zip(scores, shape, strict=True)}


def losses_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    for name, forward, backward in (
        ("nll_loss", nll_loss, nll_loss_backward),
        ("nll_loss2d", unsplit(nll_loss), unsplit(nll_loss_backward)),
    ):
        yield from rows(f"{name}_forward", "self target weight", forward, reads={"self": "target"}, results=2)
        operands = "grad_output self target weight total_weight"
        yield from rows(
            f"{name}_backward",
            operands,
            backward,
            linear="grad_output",
            reads={"self": "target"},
            ordered=name == "nll_loss2d",
        )
    for names, operands in (
        ("mse_loss smooth_l1_loss huber_loss soft_margin_loss", "self target"),
        ("binary_cross_entropy", "self target weight"),
    ):
        gradients = " ".join(f"{name}_backward" for name in names.split())
        yield from rows(names, operands, elementwise_loss)
        yield from rows(gradients, f"grad_output {operands}", elementwise_loss_backward, linear="grad_output")
    yield from rows("binary_cross_entropy_with_logits", "self target weight pos_weight", elementwise_loss)
    # The lengths of all sequences are one argument, and alignments span time and classes.
    yield from rows("_ctc_loss", "log_probs targets", whole, results=2)
    yield from rows("_ctc_loss.Tensor", "log_probs targets input_lengths target_lengths", whole, results=2)
    yield from rows("_ctc_loss_backward", "grad log_probs targets neg_log_likelihood log_alpha", whole, linear="grad")
    # On devices other than CPUs, each of the ops that implement them reads all scores.
    yield from rows(
        "sum_exp",
        "scores shift",
        "([b, c], [b]) -> ([b]) reduction={c}",
        flops="30*each",
        passes=5,
        arguments="",
    )
    yield from rows(
        "cross_entropy_backward",
        "grad scores logsumexp target",
        "([b], [b, c], [b], [b]) -> ([b, c]) indexed={c: 3}",
        linear="grad",
        flops="45*each",
        passes=3.5,
        arguments="",
    )
