"""
The results of an op on a rank whose shard is empty.

Shards of an even split have elements; explicit offsets may leave a shard empty. Some torch ops raise on empty
tensors (`amax`, max-pool, batch-norm), others return a wrong shape (a convolution without input channels). The op's
rule gives the correct results: an empty tensor, or, if the empty dim is reduced, the identity of the reduction plus
the additive operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp, shape_of
from ...dialects.train import SumOfSquaresOp
from ...ir.mesh import Mesh
from ...ir.rules import Rule
from ...ir.sharding import Reduction, Sharding, local_shape

IDENTITY = {Reduction.SUM: 0.0, Reduction.MAX: -math.inf, Reduction.MIN: math.inf}
"""The identity of each reduction. For integers, the smallest or largest value of the dtype stands for infinity."""


@dataclass(frozen=True)
class Addend:
    """An operand that is reshaped to `shape`, which broadcasts, multiplied by `factor`, and added to a result."""

    operand: int
    shape: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class Constant:
    """A result of the local `shape`, filled with `value`, plus `addends`."""

    shape: tuple[int, ...]
    value: float
    addends: tuple[Addend, ...] = ()


def results_without_call(op: ComputeOp, mesh: Mesh, rank: int) -> tuple[Constant, ...] | None:
    """Return the results of `op` on `rank` if its shard is empty and no call is needed, else None."""
    signature = op.signature
    if signature is None or isinstance(op, SumOfSquaresOp):
        # A sum of squares over several tensors is correct even if some of them are empty on this rank.
        return None
    results = _local_shapes(op.outs, signature.results, mesh, rank)
    operands = _local_shapes(op.args, signature.operands, mesh, rank)
    pairs = zip((*results, *operands), (*op.outs, *op.args), strict=True)
    if not any(local == 0 < size for shape, value in pairs for local, size in zip(shape, shape_of(value), strict=True)):
        return None
    # Results that the op is asked not to compute are placeholders.
    wanted = op.arguments().get("output_mask", [True] * len(results))
    partial = [dict(sharding.partial).values() for sharding in signature.results]
    needed = zip(wanted, results, partial, strict=True)
    if any(asked and 0 not in shape and not reductions for asked, shape, reductions in needed):
        return None
    rule = op.rule()
    beta = float(op.arguments().get("beta", 1))
    addends = tuple(Addend(i, _aligned(rule, i, operands[i]), beta) for i in sorted(rule.additive))
    return tuple(
        Constant(shape, next((IDENTITY[reduction] for reduction in reductions), 0.0), addends)
        for shape, reductions in zip(results, partial, strict=True)
    )


def _local_shapes(
    values: Sequence[SSAValue], shardings: Sequence[Sharding], mesh: Mesh, rank: int
) -> list[tuple[int, ...]]:
    return [local_shape(shape_of(v), s, mesh, rank) for v, s in zip(values, shardings, strict=True)]


def _aligned(rule: Rule, operand: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that broadcasts an operand to the first result, with dims matched by factor."""
    sizes = dict(zip(rule.operands[operand], shape, strict=True))
    return tuple(sizes.get(dim, 1) for dim in rule.results[0])
