"""
The time of a strategy in duplex training: psi and phi of HiDup (section 4.2).

The batch is cut into two micro-batches that take turns. A strategy divides the step into phases ("stages" in the
paper). A phase is a communication step, which brings operands into the shardings that the phase's ops demand, and
then a computation step. comm_i and comp_i are the seconds of the two steps of phase i for one micro-batch:

    phi_i = -comp_i                                                                              (equation 4)
    psi_i = psi_(i-1) + phi_(i-1) + max(-phi_(i-1), comm_i) + max(comm_i, comp_i) - phi_i         (equation 5)

The second micro-batch begins to compute phase i at psi_i + phi_i and ends it at psi_i.

The paper's model covers only forward values. The mapping to a whole step:

    micro-batch   Every op and collective counts half of its seconds for the whole batch, as the interface of algorithms
                  has no problem of two parts (`BatchLoop`). So each half pays half of each latency and launch.
    once          Gathers of parameters happen once in a step, before the first micro-batch needs them. Reductions of
                  gradients, updates, and transfers home happen once, after the second. So comm_i and comp_i differ
                  between the micro-batches. Equation 5 names them by position (brackets give the micro-batch):
                  psi + phi + max(-phi, comm[1]) + max(comm[2], comp[1]) + comp[2], and phi becomes -comp[2].
    weights       Seconds count without the weights of `search-strategy`, since the phases determine the overlap.
                  Traffic of parameters and gradients is priced in full buckets (`EdgeTraffic.seconds`).
    copy          A working copy is gathered in the first phase that uses it. A regathered copy is gathered in the
                  first phase of forward and again in the first phase of backward that use it, for half the cost each.
    local change  Taking a slice, or adding zeros to a partial sum, is computation without communication.
    last phase    New values go home to their arguments, and the loss to all devices, in a last phase without ops.
    first phase   Homes of arguments are part of the strategy, so the first phase may begin with communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import BlockArgument, OpResult, SSAValue

from ....dialects import train
from ....dialects.compute import ComputeOp
from ....dialects.step import BACKWARD
from ....ir.sharding import DimSharding, Sharding
from ...step.step_view import StepView
from ..problem import Costs, States
from ..strategy_problem import StrategyProblem

MOST_OPS = 10
"""The maximum number of ops in a phase, as in the experiments of the paper's authors."""

_HALVES, _BEFORE, _AFTER = (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)
"""The shares of the whole batch's seconds that the two micro-batches take."""


def appended(psi: Costs, phi: Costs, comm: Costs, comp: Costs) -> tuple[Costs, Costs]:
    """
    Return psi and phi of strategies after one more phase, by equations 4 and 5.

    Args:
        comm, comp: seconds of the steps of the phase; the last dim is the micro-batch.
    """
    first = psi + phi + np.maximum(-phi, comm[..., 0])
    return first + np.maximum(comm[..., 1], comp[..., 0]) + comp[..., 1], -comp[..., 1]


@dataclass(frozen=True, eq=False)
class ShardingTransfer:
    """
    A change of a value's sharding between two decisions.

    Args:
        source, target: nodes.
        comm: seconds of collectives, by the states of both nodes and by micro-batch; inf forbids the pair.
        local: seconds of local changes.
        uses: op nodes that use the change; the first to run pays for it. Empty for the last phase.
    """

    source: int
    target: int
    comm: Costs
    local: Costs
    uses: frozenset[int]


@dataclass(frozen=True, eq=False)
class DuplexProblem:
    """
    The seconds of each micro-batch of a step, by decision.

    Args:
        ops: nodes of ops in program order.
        comp: by node, the seconds of its op by state and micro-batch; inf forbids a state; 0 for nodes without an op.
        ends: by node, seconds of collectives in the last phase.
        updates: ops of the optimizer's update.
        operands: by op, the ops that compute its operands.
        origins: by node, the op that computes its value; -1 for arguments.
    """

    ops: tuple[int, ...]
    updates: frozenset[int]
    comp: tuple[Costs, ...]
    ends: dict[int, Costs]
    operands: dict[int, frozenset[int]]
    origins: tuple[int, ...]
    transfers: tuple[ShardingTransfer, ...]

    @cached_property
    def by_use(self) -> dict[int, tuple[ShardingTransfer, ...]]:
        """Return, by op, the transfers that the op may have to pay for."""
        listed: dict[int, list[ShardingTransfer]] = {op: [] for op in self.ops}
        for transfer in self.transfers:
            for op in transfer.uses:
                listed[op].append(transfer)
        return {op: tuple(transfers) for op, transfers in listed.items()}

    def psi(self, assignment: Sequence[int] | States, phases: Sequence[Sequence[int]]) -> float:
        """Return psi of a complete strategy, or inf if it is not allowed; `phases` lists the ops of each phase."""
        phase_of = {op: number for number, phase in enumerate(phases) for op in phase}
        comm, comp = np.zeros((2, len(phases) + 1, 2))
        for node, costs in enumerate(self.comp):
            comp[phase_of.get(node, 0)] += costs[assignment[node]]
        for node, costs in self.ends.items():
            comm[-1] += costs[assignment[node]]
        for transfer in self.transfers:
            at = min((phase_of[op] for op in transfer.uses), default=len(phases))
            sent = transfer.comm[assignment[transfer.source], assignment[transfer.target]]
            comm[at] += sent
            comp[at] += transfer.local[assignment[transfer.source], assignment[transfer.target]]
            if sent.any() and phase_of.get(self.origins[transfer.source], -1) == at:
                return np.inf
        if any(phase_of[before] > phase_of[op] for op in self.ops for before in self.operands[op]):
            return np.inf
        psi = phi = np.zeros(1)
        for number in range(len(comm)):
            psi, phi = appended(psi, phi, comm[number], comp[number])
        return float(psi[0])


def duplex_problem(problem: StrategyProblem, view: StepView) -> DuplexProblem:
    """Return the seconds of each micro-batch of a step, for its discrete problem."""
    nodes = {id(d.subject): n for n, d in enumerate(problem.decisions) if isinstance(d.subject, ComputeOp)}
    ops = tuple(nodes[id(op)] for op in view.ops)
    reads = [[v.op for v in op.args if isinstance(v, OpResult)] for op in view.ops]
    updates = frozenset(nodes[id(op)] for op in view.ops if train.is_update(op))
    return DuplexProblem(
        ops,
        updates,
        tuple(
            _split(
                seconds if seconds is not None else np.zeros_like(unary),
                np.isinf(unary),
                _AFTER if n in updates else _HALVES,
            )
            for n, (unary, seconds) in enumerate(zip(problem.problem.unary, problem.seconds, strict=True))
        ),
        {node: _split(costs, np.isinf(costs), _HALVES) for node, costs in problem.ends.items()},
        {op: frozenset(nodes[id(m)] for m in makers if id(m) in nodes) for op, makers in zip(ops, reads, strict=True)},
        tuple(_origin(d.subject, nodes) for d in problem.decisions),
        tuple(_transfers(problem, nodes, {step_input.argument for step_input in view.inputs if step_input.rows})),
    )


def _origin(subject: ComputeOp | SSAValue, nodes: dict[int, int]) -> int:
    maker = subject.op if isinstance(subject, OpResult) else subject
    return nodes.get(id(maker), -1)


def _transfers(problem: StrategyProblem, nodes: dict[int, int], batch: set[BlockArgument]) -> list[ShardingTransfer]:
    """Return the transfers of all edges; equal transfers share their arrays."""
    cache: dict[object, tuple[Costs, Costs]] = {}
    transfers: list[ShardingTransfer] = []
    for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
        decision = problem.decisions[edge.v]
        again = any(decision.regather)
        once = traffic.price.beside and traffic.move.value not in batch
        shares = (_BEFORE if isinstance(traffic.move.value, BlockArgument) else _AFTER) if once else _HALVES
        key = (id(edge.table), traffic.price.beside, id(traffic.sources), id(traffic.targets), again, shares)
        if key not in cache:
            seconds = traffic.seconds()
            seconds = np.zeros_like(edge.table) if seconds is None else (0.5 if again else 1.0) * seconds
            local = np.array([[is_local(source, target) for target in traffic.targets] for source in traffic.sources])
            sent = _split(np.where(local, 0.0, seconds), np.isinf(edge.table), shares)
            cache[key] = sent, _split(np.where(local, seconds, 0.0), np.zeros_like(local), shares)
        if isinstance(decision.subject, ComputeOp):
            users = [frozenset({edge.v})]
        elif decision.copy:
            users = _copy_users(decision.subject, nodes, again)
        else:
            users = [frozenset[int]()]
        transfers += [ShardingTransfer(edge.u, edge.v, *cache[key], uses) for uses in users]
    return transfers


def _split(seconds: Costs, forbidden: NDArray[np.bool_], shares: tuple[float, float]) -> Costs:
    """Return the seconds of each micro-batch, along a new last dim, with inf for forbidden states."""
    finite = np.where(forbidden, 0.0, seconds)
    return np.where(forbidden[..., None], np.inf, np.stack([share * finite for share in shares], axis=-1))


def _copy_users(value: SSAValue, nodes: dict[int, int], again: bool) -> list[frozenset[int]]:
    """Return the ops that read a working copy, in one group, or in separate groups for forward and backward."""
    users = [use.operation for use in value.uses if id(use.operation) in nodes]
    if isinstance(value, BlockArgument):
        users = [op for op in users if isinstance(op, ComputeOp) and not train.is_update(op)]
    groups = [
        [op for op in users if not again or (BACKWARD in op.attributes) == backward] for backward in (False, True)
    ]
    return [frozenset(nodes[id(op)] for op in group) for group in groups[: 1 + again]]


def is_local(source: Sharding, target: Sharding) -> bool:
    """Whether each device can change the sharding locally: it takes a slice, or adds zeros to a partial sum."""
    if not set(source.partial).issubset(target.partial):
        return False
    return all(a == b or _slices(a, b) for a, b in zip(source.dims, target.dims, strict=True))


def _slices(source: DimSharding, target: DimSharding) -> bool:
    even = source.offsets is None and target.offsets is None
    return not source.axes or (even and target.axes[: len(source.axes)] == source.axes)
