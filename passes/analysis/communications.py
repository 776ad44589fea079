"""
The communications of each rank of a job, in the order of the scheduled program.

A collective is issued by all ranks of its group, a transfer by those that send and those that receive. Issuing does
not wait; being waited for does, and a collective that is not in two halves is waited for at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import Action, FragmentOp, TransferOp
from ...dialects.sharding_attrs import ShardingAttr
from ...dialects.spmd import CollectiveOp, StartOp, WaitOp
from ...dialects.stage_program import StageProgram, stage_programs
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...ir.collectives import find_step
from ...ir.mesh import AxisKind, Mesh
from ..step.loop import communicates
from ..step.step_view import stage_meshes


class Half(StrEnum):
    """Whether a communication is issued or waited for."""

    ISSUE = "issue"
    WAIT = "wait"


@dataclass(frozen=True)
class Communication:
    """One communication: an op, for one part of the loop that it is in (0 where it is in none)."""

    op: Operation
    part: int


@dataclass(frozen=True)
class CommunicationEvent:
    """
    What a rank does about a communication.

    `groups` are those of the job's ranks within which its order counts: of a collective its group, of a transfer each
    pair of a sender and a receiver.
    """

    half: Half
    what: Communication
    groups: tuple[tuple[int, ...], ...]


def communication_events(module: ModuleOp, func: FuncOp) -> dict[int, list[CommunicationEvent]]:
    """By rank of the job, what it communicates in its order."""
    ranks = {op.sym_name.data: op.ranks for op in module.ops if isinstance(op, MeshOp)}
    found: dict[int, list[CommunicationEvent]] = {}
    for (_, mesh), program in zip(stage_meshes(module, func), stage_programs(func), strict=True):
        steps = list(_steps(program, mesh))
        for place, rank in enumerate(ranks[mesh.name]):
            found[rank] = [m for each in steps if (m := _moment(each, place, rank, mesh, ranks)) is not None]
    return found


@dataclass(frozen=True)
class _StageStep:
    """A step of a stage; without a part what is there for all of them crosses at once."""

    half: Half
    op: CollectiveOp | StartOp | TransferOp
    part: int | None


def _steps(program: StageProgram, mesh: Mesh) -> Iterator[_StageStep]:
    """The communications of one stage, or of a step without stages, in order."""
    for each in program.entries:
        op = each.op
        if isinstance(op, TransferOp):
            yield _StageStep(Half.ISSUE if each.action is Action.START else Half.WAIT, op, each.part)
        elif isinstance(op, FragmentOp):
            parts = range(mesh.axis(op.axis.data).size) if each.part is None else (each.part,)
            for part, inner in itertools.product(parts, op.body.block.ops):
                yield from _of_op(inner, part, mesh)
        else:
            yield from _of_op(op, 0, mesh)


def _of_op(op: Operation, part: int, mesh: Mesh) -> Iterator[_StageStep]:
    match op:
        case StartOp():
            yield _StageStep(Half.ISSUE, op, part)
        case WaitOp():
            yield _StageStep(Half.WAIT, op.start, part)
        case CollectiveOp() if communicates(op, mesh):
            yield _StageStep(Half.ISSUE, op, part)
            yield _StageStep(Half.WAIT, op, part)
        case _:
            pass


def _moment(
    step: _StageStep, place: int, rank: int, mesh: Mesh, ranks: Mapping[str, Sequence[int]]
) -> CommunicationEvent | None:
    """A step as the device at `place` of the mesh takes it; None where it has no share in it."""
    what = Communication(step.op, step.part or 0)
    if isinstance(step.op, TransferOp):
        groups = tuple(pair for pair in _pairs(step.op, step.part, mesh, ranks) if rank in pair)
        return CommunicationEvent(step.half, what, groups) if groups else None
    members = mesh.group(place, _axes(step.op, mesh))
    group = tuple(ranks[mesh.name][member] for member in members)
    return CommunicationEvent(step.half, what, (group,)) if len(group) > 1 else None


def _pairs(
    op: TransferOp, part: int | None, mesh: Mesh, ranks: Mapping[str, Sequence[int]]
) -> Iterable[tuple[int, int]]:
    """Who sends to whom; without tasks, all of one mesh to all of the other."""
    if op.tasks is not None:
        # Parts of the loop are major to those of the axes that are unrolled in it.
        temporal = [axis.size for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL]
        within = math.prod(temporal[1:])
        tasks = [task.data for task in op.tasks if part is None or task.data.part // within == part]
        return dict.fromkeys((task.sender, receiver) for task in tasks for receiver in task.receivers)
    source = _mesh_of(op)
    return [(sender, receiver) for sender in ranks[source] for receiver in ranks[op.mesh.data]] if source else []


def _mesh_of(op: TransferOp) -> str | None:
    func = op.parent_op()
    assert isinstance(func, FuncOp)
    stages = Stages(func)
    stage = stages.of_value(op.operand)
    return stages.names[stage] if stage is not None else None


def _axes(op: CollectiveOp | StartOp, mesh: Mesh) -> tuple[str, ...]:
    if isinstance(op, CollectiveOp):
        return op.step(sharding_of(op.operand), mesh).axes
    target: ShardingAttr = op.out_shardings.data[0]
    step = find_step(op.collective, sharding_of(op.args[0]), target.sharding, mesh)
    assert step is not None, "a started collective verifies"
    return step.axes
