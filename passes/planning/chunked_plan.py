"""The best plan with products and their collectives in parts (`chunk-collectives`), judged as all candidates are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from ...dialects.aten import AtenOp
from ...dialects.spmd import CollectiveOp, StartOp
from ...ir.collectives import CollectiveKind
from ..analysis.durations import communication_of
from ..overlapping.chunks import PRODUCTS, REDUCED, VIEWS, ChunkTimes, sites_of
from ..overlapping.flow import OpFlow
from ..pipeline import Pipeline
from ..step.loop import communicates
from ..step.step_view import step_views
from .candidate_compiler import CandidateCompiler
from .solutions import Finished, Solved

WORTH = 0.01
"""What part of a step parts must be expected to gain, for the program with them to be made."""


def chunked(bench: CandidateCompiler, solved: Solved, best: Finished) -> Finished | None:
    """
    The best candidate with products in parts; None where these have too little to gain, or cannot be.

    Args:
        bench: of the whole step, with the activations that the candidate keeps.
        solved: its strategy.
    """
    layout = replace(best.candidate.layout, chunked=True)
    worth = WORTH * best.seconds
    if layout.mode not in ("whole", "accumulate") or best.exposed < worth or _most(best.module) < worth:
        return None
    candidate = replace(best.candidate, layout=layout)
    try:
        module = bench.written(replace(solved, candidate=candidate))
        for each in Pipeline.parse(layout.program.collectives):
            each.apply(bench.ctx, module)
        if _expected(module) < worth:
            return None
        for each in Pipeline.parse(layout.program.overlapped):
            each.apply(bench.ctx, module)
        return bench.judged(candidate, module)
    except PassFailedException:
        return None


def _expected(module: ModuleOp) -> float:
    """The seconds of a step that products in parts are expected to save, where all else is decided."""
    found = 0.0
    for view, cluster in step_views(module):
        flow = OpFlow(view)
        times = ChunkTimes(flow, cluster)
        found += sum(map(times.gain, sites_of(flow)))
    return found


def _most(module: ModuleOp) -> float:
    """An upper bound of it, found at once on a finished program: what is sent for products, or of them."""
    found = 0.0
    for view, cluster in step_views(module):
        for op in view.func.walk():
            if isinstance(op, CollectiveOp | StartOp) and view.has(op) and _is_of_product(op):
                if isinstance(op, StartOp) or communicates(op, view.mesh):
                    found += communication_of(op, view.mesh).seconds(cluster)
    return found


def _is_of_product(op: CollectiveOp | StartOp) -> bool:
    kind = op.KIND if isinstance(op, CollectiveOp) else op.collective
    if kind in REDUCED:
        return any(isinstance(value, OpResult) and _is_product(value.op) for value in op.operands)
    made = op.results if isinstance(op, CollectiveOp) else next(iter(op.token.uses)).operation.results
    return kind is CollectiveKind.ALL_GATHER and any(any(map(_is_product, _users(value))) for value in made)


def _is_product(op: Operation) -> bool:
    return isinstance(op, AtenOp) and op.overload in PRODUCTS


def _users(value: SSAValue) -> Iterator[Operation]:
    """The users of a value, and of views of it."""
    for user in (use.operation for use in value.uses):
        yield user
        if isinstance(user, AtenOp) and user.overload in VIEWS:
            yield from _users(user.outs[0])
