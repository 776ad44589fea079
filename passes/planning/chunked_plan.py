"""Compile a plan with products and their collectives in parts (`chunk-collectives`), and simulate it."""

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
from .candidates import Layout
from .solutions import Finished, Solved

WORTH = 0.01
"""Least fraction of a step that products in parts must be expected to save, before the program is compiled."""


def is_chunkable(layout: Layout) -> bool:
    """Return whether the products of a layout are whole and may be cut in parts."""
    return layout.mode in ("whole", "accumulate") and not layout.chunked


def chunked(bench: CandidateCompiler, solved: Solved, plain: Finished, worth: float) -> Finished | None:
    """
    Return a candidate with products in parts, or None if that is infeasible or would save too little.

    Args:
        bench: the compiler of the whole step that keeps the candidate's fraction of activations.
        solved: the candidate with its strategy.
        plain: the program of the candidate, whose layout is chunkable.
        worth: seconds that must be saved.
    """
    layout = replace(plain.candidate.layout, chunked=True)
    if plain.exposed < worth or _most(plain.module) < worth:
        return None
    candidate = replace(plain.candidate, layout=layout)
    try:
        module = bench.written(replace(solved, candidate=candidate))
        for program_pass in Pipeline.parse(layout.program.collectives):
            program_pass.apply(bench.ctx, module)
        if _expected(module) < worth:
            return None
        for program_pass in Pipeline.parse(layout.program.overlapped):
            program_pass.apply(bench.ctx, module)
        return bench.judged(candidate, module)
    except PassFailedException:
        return None


def _expected(module: ModuleOp) -> float:
    """Return the seconds that products in parts are expected to save, with all other decisions fixed."""
    gain = 0.0
    for view, cluster in step_views(module):
        flow = OpFlow(view)
        times = ChunkTimes(flow, cluster)
        gain += sum(map(times.gain, sites_of(flow)))
    return gain


def _most(module: ModuleOp) -> float:
    """Return a quick upper bound of the saving, on a finished program: the seconds of the products' collectives."""
    seconds = 0.0
    for view, cluster in step_views(module):
        for op in view.func.walk():
            if isinstance(op, CollectiveOp | StartOp) and view.has(op) and _is_of_product(op):
                if isinstance(op, StartOp) or communicates(op, view.mesh):
                    seconds += communication_of(op, view.mesh).seconds(cluster)
    return seconds


def _is_of_product(op: CollectiveOp | StartOp) -> bool:
    kind = op.KIND if isinstance(op, CollectiveOp) else op.collective
    if kind in REDUCED:
        return any(isinstance(value, OpResult) and _is_product(value.op) for value in op.operands)
    values = op.results if isinstance(op, CollectiveOp) else next(iter(op.token.uses)).operation.results
    return kind is CollectiveKind.ALL_GATHER and any(any(map(_is_product, _users(value))) for value in values)


def _is_product(op: Operation) -> bool:
    return isinstance(op, AtenOp) and op.overload in PRODUCTS


def _users(value: SSAValue) -> Iterator[Operation]:
    """Yield the users of a value and of its views."""
    for user in (use.operation for use in value.uses):
        yield user
        if isinstance(user, AtenOp) and user.overload in VIEWS:
            yield from _users(user.outs[0])
