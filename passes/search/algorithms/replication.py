"""
Limit the replication of parameters until a strategy fits in memory (AutoDDL, section 4.5.2).

The weight of a product has the distribution (B: p0, S1: p1, S0: p2), which replicates it p0 times. Parameters and
optimizer states take most of the memory, so a threshold limits p0; the threshold falls until the strategy found fits.

The threshold applies to the replication of parameters and optimizer states between steps, and of the weights that
products read, with their working copies. A decision without an alternative below the threshold keeps its least
replicated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from xdsl.ir import BlockArgument, OpResult, SSAValue

from ....dialects import train
from ....dialects.compute import ComputeOp
from ....ir.mesh import Mesh
from ....ir.sharding import Sharding
from ....ir.signatures import Signature
from ...analysis.compute import is_contraction
from ...step.step_view import StepView
from ..problem import Costs, Problem
from ..strategy_problem import Decision, StrategyProblem


def replication(sharding: Sharding, mesh: Mesh) -> int:
    """Return the number of devices that hold the same part of a value."""
    sizes = {axis.name: axis.size for axis in mesh.spatial}
    return prod(sizes.values()) // prod(sizes[axis] for dim in sharding.dims for axis in dim.axes)


def by_threshold(problem: StrategyProblem, view: StepView) -> Iterator[tuple[int, StrategyProblem]]:
    """Yield thresholds, from the highest, each with the problem limited to it. The highest forbids nothing."""
    kept = {step_input.argument for step_input in view.inputs if step_input.role in (train.PARAM, train.STATE)}
    # Values that ops with one operand compute from a parameter stand for the parameter.
    weights: dict[SSAValue, SSAValue] = {
        step_input.argument: step_input.argument for step_input in view.inputs if step_input.role == train.PARAM
    }
    for op in view.ops:
        if len(op.args) == 1 and op.args[0] in weights:
            weights.update({result: weights[op.args[0]] for result in op.outs})
    counts = [_counts(decision, kept, weights, view.mesh) for decision in problem.decisions]
    thresholds = sorted({number for numbers in counts if numbers is not None for number in numbers}, reverse=True)
    yield (thresholds[0] if thresholds else 1), problem
    for threshold in thresholds[1:]:
        shared: dict[tuple[int, bytes], Costs] = {}
        unary: list[Costs] = []
        for costs, numbers in zip(problem.problem.unary, counts, strict=True):
            if numbers is not None:
                forbidden = np.array(numbers) > max(threshold, min(numbers))
                key = id(costs), forbidden.tobytes()
                costs = shared.setdefault(key, np.where(forbidden, np.inf, costs))
            unary.append(costs)
        yield threshold, replace(problem, problem=Problem(tuple(unary), problem.problem.edges))


def _counts(
    decision: Decision, kept: set[BlockArgument], weights: dict[SSAValue, SSAValue], mesh: Mesh
) -> Sequence[int] | None:
    """Return the replication of parameters by state of a decision, or None if thresholds do not limit it."""
    subject = decision.subject
    if isinstance(subject, ComputeOp):
        operands = [at for at, value in enumerate(subject.args) if value in weights] if is_contraction(subject) else []
        signatures = [state for state in decision.states if isinstance(state, Signature)]
        if not operands:
            return None
        return [max(replication(signature.operands[at], mesh) for at in operands) for signature in signatures]
    shardings = [state for state in decision.states if isinstance(state, Sharding)]
    if decision.copy:
        is_limited = subject in weights and _feeds_product(subject)
    else:
        is_limited = not isinstance(subject, OpResult) and subject in kept
    return [replication(sharding, mesh) for sharding in shardings] if is_limited else None


def _feeds_product(value: SSAValue) -> bool:
    """Return whether a product reads a value, directly or through ops with one operand."""
    users = [use.operation for use in value.uses if isinstance(use.operation, ComputeOp)]
    through = [user for user in users if len(user.args) == 1]
    return any(map(is_contraction, users)) or any(_feeds_product(result) for user in through for result in user.outs)
