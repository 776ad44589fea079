"""How many ops of a program have a sharding rule, and from where."""

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
    What `shardwright import --coverage` writes.

    `tensor_ops` counts the ops that compute tensors, the optimizer's updates aside. `replicated`, `inferred` and
    `registered` give, by op, how many uses have no rule, an inferred and a registered one; all others have a row.
    """
    uses: dict[str, Counter[str]] = {"replicated": Counter(), "inferred": Counter(), "registered": Counter()}
    count = 0
    for op in module.walk():
        count += isinstance(op, AtenOp | OpaqueOp) and not is_update(op)
        if isinstance(op, OpaqueOp):
            uses[_source(op)][op.overload] += 1
    replicated, inferred, registered = (dict(sorted(found.items())) for found in uses.values())
    return {"tensor_ops": count, "replicated": replicated, "inferred": inferred, "registered": registered}


def _source(op: OpaqueOp) -> str:
    if RULE not in op.attributes:
        return "replicated"
    return "inferred" if INFERRED in op.attributes else "registered"
