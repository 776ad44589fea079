"""Count the ops of a program with and without a sharding rule, by the source of the rule."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from xdsl.dialects.builtin import ModuleOp

from ...dialects.aten import INFERRED, RULE, AtenOp, OpaqueOp
from ...dialects.train import is_update


class Coverage(TypedDict):
    """Counts of ops; see `coverage`."""

    tensor_ops: int
    replicated: dict[str, int]
    inferred: dict[str, int]
    registered: dict[str, int]


def coverage(module: ModuleOp) -> Coverage:
    """
    Return the counts that `shardwright import --coverage` writes.

    `tensor_ops` counts the ops that compute tensors, except the optimizer's updates. `replicated`, `inferred` and
    `registered` map ops to their numbers of uses without a rule, with an inferred rule and with a registered rule; all
    other ops have a row in the table.
    """
    uses: dict[str, Counter[str]] = {"replicated": Counter(), "inferred": Counter(), "registered": Counter()}
    count = 0
    for op in module.walk():
        count += isinstance(op, AtenOp | OpaqueOp) and not is_update(op)
        if isinstance(op, OpaqueOp):
            uses[_source(op)][op.overload] += 1
    replicated, inferred, registered = (dict(sorted(counts.items())) for counts in uses.values())
    return {"tensor_ops": count, "replicated": replicated, "inferred": inferred, "registered": registered}


def _source(op: OpaqueOp) -> str:
    if RULE not in op.attributes:
        return "replicated"
    return "inferred" if INFERRED in op.attributes else "registered"
