"""
The communications of a job in the order of the scheduled program, by classes of ranks with the same communications.

All ranks of a stage issue its collectives, each in its own group. Senders and receivers issue a transfer. Issuing does
not block, but waiting does; a collective that is one op is waited for at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TypeAlias

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
    """One communication: an op, for one part of its loop (0 outside of loops)."""

    op: Operation
    part: int


@dataclass(frozen=True)
class CommunicationEvent:
    """One action of a rank: it issues a communication, or waits for it."""

    half: Half
    what: Communication


@dataclass(frozen=True)
class EqualRanks:
    """Ranks of one stage that take part in the same communications; all have these events, in this order."""

    ranks: tuple[int, ...]
    events: tuple[CommunicationEvent, ...]


Pair: TypeAlias = tuple[int, int]
"""A sender and a receiver, ranks of the job."""


@dataclass(frozen=True)
class Communications:
    """
    The communications of a job.

    Args:
        classes: the classes of the ranks of each stage.
        transfers: for each pair, the transfers from its sender to its receiver. Transfers without tasks lead from all
            ranks of a mesh to all of another; besides pairs with tasks, one pair of each two classes lists them.
    """

    classes: tuple[EqualRanks, ...]
    transfers: Mapping[Pair, tuple[Communication, ...]]


def communications_of(module: ModuleOp, func: FuncOp) -> Communications:
    """Return the communications of all ranks of a step function."""
    ranks = {op.sym_name.data: op.ranks for op in module.ops if isinstance(op, MeshOp)}
    classes: dict[str, list[EqualRanks]] = {}
    planned: dict[Pair, dict[Communication, None]] = {}
    unplanned: dict[tuple[str, str], dict[Communication, None]] = {}
    for (_, mesh), program in zip(stage_meshes(module, func), stage_programs(func), strict=True):
        members: dict[Communication, Iterable[int]] = {}
        for op, part in dict.fromkeys((entry.op, entry.part) for entry in program.entries):
            if not isinstance(op, TransferOp):
                continue
            communication = Communication(op, part or 0)
            # Temporal axes that are unrolled inside the loop are minor to the axis of the loop.
            temporal = [axis.size for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL]
            within = math.prod(temporal[1:])
            tasks = [task.data for task in op.tasks or () if part is None or task.data.part // within == part]
            pairs = list(dict.fromkeys((task.sender, receiver) for task in tasks for receiver in task.receivers))
            members[communication] = dict.fromkeys(chain.from_iterable(pairs))
            for pair in pairs:
                planned.setdefault(pair, {})[communication] = None
            if op.tasks is None and (source := _mesh_of(op)) is not None:
                members[communication] = ranks[mesh.name]
                unplanned.setdefault((source, op.mesh.data), {})[communication] = None
        classes[mesh.name] = _classes(ranks[mesh.name], list(_events(program, mesh)), members)
    for (source, target), transfers in unplanned.items():
        of_source, of_target = set(ranks[source]), set(ranks[target])
        mixed = [pair for pair in planned if pair[0] in of_source and pair[1] in of_target]
        firsts = [(one.ranks[0], other.ranks[0]) for one in classes[source] for other in classes[target]]
        for pair in mixed + firsts:
            planned.setdefault(pair, {}).update(transfers)
    shared = {pair: tuple(transfers) for pair, transfers in planned.items()}
    return Communications(tuple(chain.from_iterable(classes.values())), shared)


def _classes(
    ranks: Sequence[int], events: Sequence[CommunicationEvent], members: Mapping[Communication, Iterable[int]]
) -> list[EqualRanks]:
    """
    Return the classes of the ranks of a stage.

    Args:
        members: the ranks that take part in each transfer.
    """
    taken: dict[int, dict[Communication, None]] = {rank: {} for rank in ranks}
    for transfer, participants in members.items():
        for rank in participants:
            if rank in taken:
                taken[rank][transfer] = None
    by_transfers: dict[tuple[Communication, ...], list[int]] = {}
    for rank, transfers in taken.items():
        by_transfers.setdefault(tuple(transfers), []).append(rank)
    classes: list[EqualRanks] = []
    for key, group in by_transfers.items():
        absent = members.keys() - set(key)
        classes.append(EqualRanks(tuple(group), tuple(event for event in events if event.what not in absent)))
    return classes


def _events(program: StageProgram, mesh: Mesh) -> Iterator[CommunicationEvent]:
    """Yield the communications of one stage, or of a step without stages, in order, whichever ranks take part."""
    bodies: dict[FragmentOp, list[tuple[Half, Operation]]] = {}
    for entry in program.entries:
        op = entry.op
        if isinstance(op, TransferOp):
            half = Half.ISSUE if entry.action is Action.START else Half.WAIT
            yield CommunicationEvent(half, Communication(op, entry.part or 0))
        elif isinstance(op, FragmentOp):
            if op not in bodies:
                bodies[op] = [event for inner in op.body.block.ops for event in _of_op(inner, mesh)]
            for part in range(mesh.axis(op.axis.data).size) if entry.part is None else (entry.part,):
                yield from (CommunicationEvent(half, Communication(inner, part)) for half, inner in bodies[op])
        else:
            yield from (CommunicationEvent(half, Communication(inner, 0)) for half, inner in _of_op(op, mesh))


def _of_op(op: Operation, mesh: Mesh) -> Iterator[tuple[Half, Operation]]:
    """Yield the collective between several ranks that an op issues or waits for, if any."""
    begun = op.start if isinstance(op, WaitOp) else op
    if isinstance(begun, StartOp) or (isinstance(begun, CollectiveOp) and communicates(begun, mesh)):
        if mesh.parts(_axes(begun, mesh)) > 1:
            if not isinstance(op, WaitOp):
                yield Half.ISSUE, begun
            if not isinstance(op, StartOp):
                yield Half.WAIT, begun


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
