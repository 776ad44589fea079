"""
Propagation of the batch split through a step, op by op: what data parallelism means for each op.

On the given axes every batch input is split along its first dim. Each op then makes the choice that asks for
the least communication from what its operands have: it follows a split it can keep, passes partial sums
through where it is linear, and otherwise runs replicated.
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
    """Per op, the placements of its operands and then its results; per value from another stage, how it comes."""

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
    The placements, on `axes` taken as one, of every op that is not an update.

    What another stage gives comes as it would be there, were the stage on this mesh; partial values come reduced. A
    partial value that was reduced for one op is reduced for those after it.

    Args:
        chosen: those of some ops, which are decided.
        complete: where some values are best, once they are reduced.
    """
    parts = view.mesh.parts(axes)
    single = Mesh((Axis("x", parts),))
    current: dict[SSAValue, Placement] = {}
    for given in view.whole.inputs:
        current[given.argument] = batch if given.rows >= parts else "R"
    found, comparisons = Propagation({}, {}), find_comparisons(view)
    for op in view.func.body.block.ops:
        if isinstance(op, TransferOp):
            there = current.get(op.operand, "R")
            current[op.result] = found.arrivals[op.result] = "R" if there == "P" else there
        elif isinstance(op, ComputeOp) and not train.is_update(op):
            # Results of updates have no placement here.
            have = [current.get(value, "R") for value in op.args]
            cost = partial(_cost, op.args, have, complete)
            best = chosen.get(op) or min(_options(comparisons.rule(op), single), key=cost)
            found.ops[op] = best
            current |= {value: b for value, a, b in zip(op.args, have, best, strict=False) if a == "P" != b}
            current |= dict(zip(op.outs, best[len(op.args) :], strict=True))
    return found


def propagate_updates(
    view: StepView, axes: tuple[str, ...], updated: Callable[[SSAValue], Placement]
) -> dict[ComputeOp, tuple[Placement, ...]]:
    """
    The placements, on `axes` taken as one, of the ops of updates that are not fused.

    Args:
        updated: where a parameter, state or gradient is for its update.
    """
    single = Mesh((Axis("x", view.mesh.parts(axes)),))
    current: dict[SSAValue, Placement] = {}
    found: dict[ComputeOp, tuple[Placement, ...]] = {}

    def have(value: SSAValue) -> Placement:
        return current.setdefault(value, updated(value))

    for op in view.ops:
        if train.is_update(op) and not isinstance(op, train.TrainOp):
            given = [have(value) for value in op.args]
            best = min(_options(op.rule(), single), key=lambda option: _messages(given, option))
            found[op] = best
            current |= dict(zip(op.outs, best[len(op.args) :], strict=True))
    return found


_OPTIONS: dict[tuple[int, int], tuple[Rule, list[tuple[Placement, ...]]]] = {}


def _options(rule: Rule, single: Mesh) -> list[tuple[Placement, ...]]:
    key = (id(rule), single.device_count)
    if key not in _OPTIONS:
        found = (signature(rule, single, [choice]) for choice in choices(rule))
        listed = [tuple(placement(s, "x") for s in (*f.operands, *f.results)) for f in found if f is not None]
        _OPTIONS[key] = (rule, listed)
    return _OPTIONS[key][1]


def _cost(
    values: Sequence[SSAValue],
    have: Sequence[Placement],
    complete: Mapping[SSAValue, Placement],
    option: tuple[Placement, ...],
) -> int:
    """How many values must be sent for, counting those twice that others will need elsewhere."""
    sent = {(value, b) for value, a, b in zip(values, have, option, strict=False) if a not in ("R", b)}
    return sum(1 + (complete.get(value, b) != b) for value, b in sent)


def _messages(have: Sequence[Placement], option: tuple[Placement, ...]) -> int:
    """How many operands need communication: a replicated operand takes any sharding without, no other does."""
    return sum(1 for a, b in zip(have, option, strict=False) if a not in ("R", b))
