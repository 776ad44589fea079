"""Ops to measure, from IR: the work of each op on one rank, and the Python text of its call there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.ir import Operation
from xdsl.utils.lexer import Input

from ...dialects.aten import ATEN
from ...dialects.compute import ComputeOp, dtype_of
from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import PIPE
from ...dialects.spmd import SPMD, SliceOp
from ...dialects.train import TRAIN, TrainOp
from ...ir.cluster import Cluster
from ...ir.cluster_file import find_cluster
from ...ir.mesh import Mesh
from ...ir.op_cost import OpWork
from ...ir.text_file import read_text
from ...lowering.calls.calls import call_of
from ...lowering.codegen.emit_python import emit_python
from ...lowering.interpreter.local_compute import signature_of
from ...lowering.interpreter.local_op import call_text, local_shapes
from ...lowering.interpreter.random_inputs import batch_ranges
from ...passes.analysis.compute import op_work, slice_work
from ...passes.reading import InvalidModuleError, TextError, read_module
from ...passes.step.step_view import cluster_of_module, step_views
from ...runtime.profile.rehearsal import Rehearsal
from ...runtime.profile.samples import OpSample, TensorSpec
from ..compile import compile_step
from ..steps import find_step


class PlanFileError(ValueError):
    """An error that reports a plan that cannot be read or belongs to another cluster; the message names it."""


@dataclass(frozen=True)
class PlannedOps:
    """The distinct ops of plans, the plans that provide context for timing them, and their cluster."""

    samples: tuple[OpSample, ...]
    rehearsals: tuple[Rehearsal, ...]
    cluster: Cluster


def ops_of_plans(plans: Sequence[str], cluster: str | None) -> PlannedOps:
    """
    Return the ops of plans that need to be measured.

    Args:
        plans: folders that `shardwright plan` wrote, or steps, which are planned here.
        cluster: a cluster file, or the name of a shipped one; by default the cluster of the first plan, a folder.

    Raises:
        PlanFileError: a folder contains no plan, a plan does not match the cluster, or a step has no cluster.
    """
    target = find_cluster(cluster) if cluster is not None else None
    samples: dict[str, OpSample] = {}
    rehearsals: list[Rehearsal] = []
    for plan in plans:
        module = _plan(plan, target)
        made_for = cluster_of_module(module)
        target = made_for if target is None else target
        if made_for.mesh.device_count != target.mesh.device_count:
            counts = f"{made_for.mesh.device_count} ranks, but the cluster {target.name} has {target.mesh.device_count}"
            raise PlanFileError(f"{plan} is planned for {counts}")
        samples |= {sample.work.key: sample for sample in samples_of_plan(module)}
        rehearsals.append(rehearsal_of(module, plan))
    assert target is not None, "there is at least one plan"
    return PlannedOps(tuple(samples.values()), tuple(rehearsals), target)


def _plan(plan: str, cluster: Cluster | None) -> ModuleOp:
    path = Path(plan, "step.mlir")
    if not Path(plan).is_dir():
        if cluster is None:
            raise PlanFileError(
                f"{plan} is not the folder of a plan, and planning it as a step needs a cluster; give a cluster"
            )
        return compile_step(find_step(plan), cluster, name=plan).module
    context = Context()
    for dialect in (Builtin, Func, ATEN, TRAIN, SPMD, PIPE):
        context.load_dialect(dialect)
    try:
        return read_module(context, Input(read_text(path), str(path))).module
    except (OSError, UnicodeDecodeError, TextError, InvalidModuleError) as error:
        raise PlanFileError(f"{plan} is not a plan: {error}; write one with `shardwright plan`") from error


def samples_of_plan(module: ModuleOp) -> tuple[OpSample, ...]:
    """Return the distinct ops of a planned step, with the local shapes of every rank."""
    samples: dict[str, OpSample] = {}
    seen: set[tuple[object, ...]] = set()
    for view, cluster in step_views(module):
        for op in view.func.walk():
            if not isinstance(op, ComputeOp) or not view.has(op) or (use := (op.use_key(), op.signature)) in seen:
                continue
            seen.add(use)
            for sample in _by_rank(op, cluster.mesh):
                samples.setdefault(sample.work.key, sample)
    return tuple(samples.values())


def rehearsal_of(module: ModuleOp, name: str) -> Rehearsal:
    """Return the program of a lowered step with timers, and the keys of its ops on every rank."""
    ticks: dict[Operation, int] = {}
    text = emit_python(module, name=name, step_spec=None, versions={}, ticks=ticks)
    grids = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    keys: dict[int, list[str]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for view, cluster in step_views(module):
        ranks, mesh = grids[view.mesh.name].ranks, cluster.mesh
        for place, rank in enumerate(ranks):
            keys[rank] = [_key(op, mesh, place) if view.has(op) else "" for op in ticks]
        ranges |= batch_ranges(view.func)
    return Rehearsal(name, text, tuple(tuple(keys[rank]) for rank in sorted(keys)), ranges)


def _key(op: Operation, mesh: Mesh, rank: int) -> str:
    """Return the key under which the time of an op on `rank` is stored, or "" for an op that is not measured."""
    if isinstance(op, ComputeOp):
        return work_of(op, mesh, rank).key
    return slice_work(op, mesh).key if isinstance(op, SliceOp) else ""


def _by_rank(op: ComputeOp, mesh: Mesh) -> Iterator[OpSample]:
    """Yield the op's samples on the ranks with work, one for each distinct amount of work."""
    done: set[OpWork] = set()
    for rank in range(mesh.device_count):
        work = work_of(op, mesh, rank)
        if (work.flops or work.bytes) and work not in done:
            done.add(work)
            if (sample := sample_of(op, mesh, rank, work)) is not None:
                yield sample


def work_of(op: ComputeOp, mesh: Mesh, rank: int) -> OpWork:
    """Return the work of an op on `rank`, with its key; an op without a signature is replicated."""
    return op_work(op, signature_of(op), mesh, rank)


def sample_of(op: ComputeOp, mesh: Mesh, rank: int, work: OpWork, highs: Sequence[int] = ()) -> OpSample | None:
    """
    Return the op with its part on `rank`, or None if the part is empty, since then nothing is called.

    Args:
        highs: the exclusive upper bound of the integers in each operand; by default the bounds of the op's rule.
    """
    shapes = local_shapes(op, mesh, rank)
    if any(math.prod(shape) == 0 for shape in shapes):
        return None
    dtypes = (dtype_of(value) for value in op.args)
    specs = tuple(TensorSpec(*each) for each in zip(shapes, dtypes, highs or _highs(op), strict=True))
    return OpSample(work, call_text(call_of(op, mesh, rank)), specs, changes=isinstance(op, TrainOp))


def _highs(op: ComputeOp) -> list[int]:
    """
    Return the exclusive upper bound of the integers in each operand.

    An operand that indexes another takes all of its indices. All others are 0 or 1, which index any dim of at least
    two; some kernels do not check their indices.
    """
    rule = op.rule()
    bounds = {operand: rule.sizes[factor] for factor, operand in rule.indexed.items()}
    return [bounds.get(operand, 2) for operand in range(len(op.args))]
