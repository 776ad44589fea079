"""
The results of an op on a rank whose part of a split dim is empty.

Even splits leave no part empty, explicit offsets may. Some of torch's ops raise on empty tensors (`amax`,
max-pool, batch-norm), some give a wrong shape (a convolution without input channels). What is right follows
from the op's rule: a result without elements, or, where the empty dim is reduced, the reduction of nothing
plus what is additive.
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
"""The reduction of nothing; of integers, the smallest or largest that there is stands for infinity."""


@dataclass(frozen=True)
class Addend:
    """An operand added to a result: reshaped to `shape`, which broadcasts, and multiplied by `factor`."""

    operand: int
    shape: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class Constant:
    """A result of local `shape` filled with `value`, plus `addends`."""

    shape: tuple[int, ...]
    value: float
    addends: tuple[Addend, ...] = ()


def results_without_call(op: ComputeOp, mesh: Mesh, rank: int) -> tuple[Constant, ...] | None:
    """The results of `op` on `rank` where its part is empty, so that nothing is called; else None."""
    signature = op.signature
    if signature is None or isinstance(op, SumOfSquaresOp):
        # Of several tensors some may have no elements here, which is a number as good as any.
        return None
    results = _local_shapes(op.outs, signature.results, mesh, rank)
    operands = _local_shapes(op.args, signature.operands, mesh, rank)
    pairs = zip((*results, *operands), (*op.outs, *op.args), strict=True)
    if not any(part == 0 < size for shape, value in pairs for part, size in zip(shape, shape_of(value), strict=True)):
        return None
    # Results that the op is asked not to compute are placeholders.
    wanted = op.arguments().get("output_mask", [True] * len(results))
    kinds = [dict(sharding.partial).values() for sharding in signature.results]
    needed = zip(wanted, results, kinds, strict=True)
    if any(asked and 0 not in shape and not kind for asked, shape, kind in needed):
        return None
    rule = op.rule()
    beta = float(op.arguments().get("beta", 1))
    addends = tuple(Addend(i, _aligned(rule, i, operands[i]), beta) for i in sorted(rule.additive))
    return tuple(
        Constant(shape, next((IDENTITY[each] for each in kind), 0.0), addends)
        for shape, kind in zip(results, kinds, strict=True)
    )


def _local_shapes(
    values: Sequence[SSAValue], shardings: Sequence[Sharding], mesh: Mesh, rank: int
) -> list[tuple[int, ...]]:
    return [local_shape(shape_of(v), s, mesh, rank) for v, s in zip(values, shardings, strict=True)]


def _aligned(rule: Rule, operand: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which an operand broadcasts to the first result: each dim where its factors are."""
    sizes = dict(zip(rule.operands[operand], shape, strict=True))
    return tuple(sizes.get(dim, 1) for dim in rule.results[0])
