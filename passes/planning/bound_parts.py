"""
Bound a step whose batch is cut into parts, by the ops of each stage and the paths before and after them.

Let r_o be seconds that pass before an op o can begin for any part of the batch, q_o seconds that pass after it ends for
any part, and p_o seconds of all its runs together, each of them a lower bound. For every r and q, and the ops of one
stage,

    step  >=  r  +  sum of p_o over the ops with r_o >= r and q_o >= q  +  q                    `queued_seconds`

since these runs take turns on the compute stream of each rank of the stage, none begins before r, and q passes after
the last. r_o is the length of the longest path of ops and transfers to o, and q_o of the longest path from o (Jackson's
bound of one machine with heads and tails). The bound holds under every schedule, since a run needs the results of its
sources for the same part.

A transfer takes at least the least latency between its stages, plus its bytes divided by the total bandwidth of all
ports that ranks of the source stage send through, or that ranks of the target stage receive through: every element
passes one port of each kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.compute import ComputeOp, value_bytes
from ...dialects.pipe import TransferOp
from ...dialects.staged import Stages
from ...ir.cluster import Cluster
from ..search.objective import BatchLoop


@dataclass(frozen=True)
class Runs:
    """
    Lower bounds of the seconds that an op takes.

    Args:
        once: seconds of one run, on the quickest rank.
        total: seconds of all runs, on one rank, the same for all ops of a stage.
        needs: operands that each of its results depends on.
        halved: whether the op may be divided, so that its second half runs after all users of the first half.
    """

    once: float
    total: float
    needs: Sequence[SSAValue]
    halved: bool = False


def queued_seconds(func: FuncOp, runs: Mapping[ComputeOp, Runs], crossing: Mapping[TransferOp, float]) -> float:
    """
    Return the bound of a step by the ops of each stage and the paths before and after them.

    Args:
        crossing: a lower bound of the seconds of each transfer.
    """
    ops, stages = list(func.body.block.ops), Stages(func)
    once: dict[Operation, float] = {**{op: run.once for op, run in runs.items()}, **crossing}
    needs: dict[Operation, Sequence[SSAValue]] = {op: run.needs for op, run in runs.items()}
    sources = {op: [v.op for v in needs.get(op, op.operands) if isinstance(v, OpResult)] for op in ops}
    head, tail = defaultdict[Operation, float](float), defaultdict[Operation, float](float)
    for op in ops:
        for source in sources[op]:
            head[op] = max(head[op], head[source] + once.get(source, 0.0))
    for op in reversed(ops):
        for source in sources[op]:
            tail[source] = max(tail[source], tail[op] + once.get(op, 0.0))
    by_stage: defaultdict[int | None, list[tuple[float, float, float]]] = defaultdict(list)
    for op, run in runs.items():
        stage = stages.of_op(op) if stages.names else None
        by_stage[stage].append((head[op], 0.0 if run.halved else tail[op], run.total))
    return max((_one_stream(triples) for triples in by_stage.values()), default=0.0)


_HEADS = 64
"""The number of values of r that are tried for a stage."""


def _one_stream(ops: Sequence[tuple[float, float, float]]) -> float:
    """Return the bound of one stage from the head, tail and seconds of each of its ops."""
    # After sorting by tail, longest first, each prefix sum counts ops whose tails are at least as long as its last.
    head, tail, total = np.array(sorted(ops, key=lambda op: -op[1])).T
    heads = np.unique(head)
    bound = 0.0
    for least in heads[:: max(1, len(heads) // _HEADS)]:
        late = head >= least
        bound = max(bound, float((least + np.cumsum(total[late]) + tail[late]).max()))
    return bound


def crossing_seconds(
    func: FuncOp, loop: BatchLoop, whole: Cluster, clusters: Sequence[Cluster]
) -> dict[TransferOp, float]:
    """
    Return a lower bound of the seconds of each transfer, for one part of the batch.

    Args:
        whole: the cluster of all ranks, stage after stage.
    """
    ends = list(accumulate((cluster.mesh.device_count for cluster in clusters), initial=0))
    stages, ways = Stages(func), dict[tuple[int, int], tuple[float, float]]()
    crossing: dict[TransferOp, float] = {}
    for op in func.body.block.ops:
        if not isinstance(op, TransferOp):
            continue
        source, target = stages.of_value(op.operand), stages.of_value(op.result)
        if source is None or target is None:
            continue
        if (source, target) not in ways:
            ways[source, target] = _way(whole, *(range(ends[at], ends[at + 1]) for at in (source, target)))
        latency, per_byte = ways[source, target]
        crossing[op] = latency + per_byte * value_bytes(op.operand) / loop.parts_of(op.operand)
    return crossing


_MOST_ROUTES = 2**14
"""With more pairs of ranks than this, routes are ignored and a transfer counts as free."""


def _way(cluster: Cluster, senders: range, receivers: range) -> tuple[float, float]:
    """Return the least latency between two groups of ranks, and the seconds of a byte when all ports share the load."""
    if len(senders) * len(receivers) > _MOST_ROUTES:
        return 0.0, 0.0
    routes = [cluster.route(*pair) for pair in product(senders, receivers)]
    per_byte = 0.0
    for end in (0, -1):
        ports = {route.ports[end]: route.capacities[end] for route in routes if route.ports}
        per_byte = max(per_byte, 1.0 / sum(ports.values()) if ports else 0.0)
    return min(route.latency for route in routes), per_byte
