"""
Propagate the batch split through a step, op by op: the placements of data parallelism.

On the given axes every batch input is split along its first dim. Each op then makes the choice that needs the least
communication, given the placements of its operands: it follows a split that it can keep, passes partial sums through if
it is linear, and otherwise runs replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from xdsl.ir import SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp
from ...dialects.pipe import TransferOp
from ...ir.mesh import Axis, Mesh
from ...ir.pins import Placement, placement
from ...ir.rules import Rule
from ...ir.signatures import choices, signature
from ..analysis.comparisons import find_comparisons
from ..step.step_view import StepView


@dataclass(frozen=True)
class Propagation:
    """The placements of each op's operands and then its results, and of each value that arrives from another stage."""

    ops: dict[ComputeOp, tuple[Placement, ...]]
    arrivals: dict[SSAValue, Placement]


def propagate_batch(
    view: StepView,
    axes: tuple[str, ...],
    batch: Placement,
    chosen: Mapping[ComputeOp, tuple[Placement, ...]] = MappingProxyType({}),
    complete: Mapping[SSAValue, Placement] = MappingProxyType({}),
) -> Propagation:
    """
    Return the placements, on `axes` treated as one axis, of every op except updates.

    A value from another stage has the placement that it would have if that stage ran on this mesh, reduced if partial.
    A partial value that was reduced for one op stays reduced for all later ops.

    Args:
        chosen: fixed placements of some ops.
        complete: preferred placements of some values after their reduction.
    """
    parts = view.mesh.parts(axes)
    single = Mesh((Axis("x", parts),))
    current: dict[SSAValue, Placement] = {}
    for step_input in view.whole.inputs:
        current[step_input.argument] = batch if step_input.rows >= parts else "R"
    propagation, comparisons = Propagation({}, {}), find_comparisons(view)
    for op in view.func.body.block.ops:
        if isinstance(op, TransferOp):
            there = current.get(op.operand, "R")
            current[op.result] = propagation.arrivals[op.result] = "R" if there == "P" else there
        elif isinstance(op, ComputeOp) and not train.is_update(op):
            # Results of updates have no placement here and count as replicated.
            have = [current.get(value, "R") for value in op.args]
            cost = partial(_cost, op.args, have, complete)
            best = chosen.get(op) or min(_options(comparisons.rule(op), single), key=cost)
            propagation.ops[op] = best
            current |= {value: b for value, a, b in zip(op.args, have, best, strict=False) if a == "P" != b}
            current |= dict(zip(op.outs, best[len(op.args) :], strict=True))
    return propagation


def propagate_updates(
    view: StepView, axes: tuple[str, ...], updated: Callable[[SSAValue], Placement]
) -> dict[ComputeOp, tuple[Placement, ...]]:
    """
    Return the placements, on `axes` treated as one axis, of the ops of updates that are not fused.

    Args:
        updated: returns the placement of a parameter, state or gradient in its update.
    """
    single = Mesh((Axis("x", view.mesh.parts(axes)),))
    current: dict[SSAValue, Placement] = {}
    placements: dict[ComputeOp, tuple[Placement, ...]] = {}

    def have(value: SSAValue) -> Placement:
        return current.setdefault(value, updated(value))

    for op in view.ops:
        if train.is_update(op) and not isinstance(op, train.TrainOp):
            operands = [have(value) for value in op.args]
            # Only split or partial operands whose placement changes need communication.
            best = min(
                _options(op.rule(), single),
                key=lambda option: sum(1 for a, b in zip(operands, option, strict=False) if a not in ("R", b)),
            )
            placements[op] = best
            current |= dict(zip(op.outs, best[len(op.args) :], strict=True))
    return placements


_OPTIONS: dict[tuple[int, int], tuple[Rule, list[tuple[Placement, ...]]]] = {}


def _options(rule: Rule, single: Mesh) -> list[tuple[Placement, ...]]:
    key = (id(rule), single.device_count)
    if key not in _OPTIONS:
        options = (signature(rule, single, [choice]) for choice in choices(rule))
        listed = [tuple(placement(s, "x") for s in (*f.operands, *f.results)) for f in options if f is not None]
        _OPTIONS[key] = (rule, listed)
    return _OPTIONS[key][1]


def _cost(
    values: Sequence[SSAValue],
    have: Sequence[Placement],
    complete: Mapping[SSAValue, Placement],
    option: tuple[Placement, ...],
) -> int:
    """Count the operands that need communication, twice if they then lack their preferred placement."""
    sent = {(value, b) for value, a, b in zip(values, have, option, strict=False) if a not in ("R", b)}
    return sum(1 + (complete.get(value, b) != b) for value, b in sent)
