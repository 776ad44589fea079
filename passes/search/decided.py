"""Turn a solution into decisions on a step, and write them into the IR."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue

from ...dialects.compute import SIGNATURE, ComputeOp
from ...dialects.pipe import TransferOp
from ...dialects.sharding_attrs import ShardingAttr, SignatureAttr
from ...dialects.step import (
    MEMORY_SAVING,
    REGATHER,
    SHARDING,
    WORKING,
    merge_argument_attributes,
    set_working_copies,
    sharding_of,
)
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ..step.step_view import StepView
from .memory import Strategy
from .problem import Solution
from .strategy_problem import StrategyProblem


def strategy_of(problem: StrategyProblem, solution: Solution, saves_memory: bool) -> Strategy:
    """Return the decisions of a solution."""
    ops: dict[ComputeOp, Signature] = {}
    homes: dict[SSAValue, Sharding] = {}
    copies: dict[SSAValue, tuple[Sharding, bool]] = {}
    for decision, state in zip(problem.decisions, solution.assignment, strict=True):
        chosen, subject = decision.states[int(state)], decision.subject
        if isinstance(subject, ComputeOp):
            assert isinstance(chosen, Signature)
            ops[subject] = chosen
        else:
            assert isinstance(chosen, Sharding)
            if decision.copy:
                copies[subject] = (chosen, decision.regather[int(state)])
            else:
                homes[subject] = chosen
    return Strategy(ops, homes, copies, saves_memory)


def write_strategy(view: StepView, strategy: Strategy) -> None:
    """Write the chosen signatures, homes and working placements into the IR."""
    mesh = view.mesh.name
    arguments: dict[int, dict[str, Attribute | None]] = {}
    for op, signature in strategy.ops.items():
        for name in (WORKING, REGATHER):
            op.attributes.pop(name, None)
        op.attributes[SIGNATURE] = SignatureAttr.of(mesh, signature)
    for value, home in strategy.homes.items():
        if isinstance(value, OpResult):
            assert isinstance(value.op, TransferOp)
            value.op.out_sharding = ShardingAttr.of(mesh, home)
        elif isinstance(value, BlockArgument):
            arguments[value.index] = {SHARDING: ShardingAttr.of(mesh, home), WORKING: None, REGATHER: None}
    merge_argument_attributes(view.func, arguments)
    set_working_copies(view.func, mesh, {v: c for v, c in strategy.copies.items() if c[0] != sharding_of(v)})
    if strategy.saves_memory:
        view.func.attributes[MEMORY_SAVING] = UnitAttr()


@dataclass(frozen=True)
class Counterparts:
    """
    Maps ops and arguments of a target step to ops and arguments of a source step, which several of them may share.

    Args:
        ops: position of the source op, by position of the target op.
        arguments: index of the source argument, by index of the target argument.
    """

    ops: tuple[int, ...]
    arguments: tuple[int, ...]


def transferred(
    strategy: Strategy, source: StepView, target: StepView, counterparts: Counterparts | None = None
) -> Strategy:
    """Transfer a strategy to a step with `counterparts` in the source, or to a copy of the source if they are None."""
    block, other = source.func.body.block, target.func.body.block
    listed = list(block.ops)
    op_at = counterparts.ops if counterparts is not None else range(len(listed))
    argument_at = counterparts.arguments if counterparts is not None else range(len(block.args))
    signatures: dict[ComputeOp, Signature] = {}
    values: list[tuple[SSAValue, SSAValue]] = [
        (block.args[at], a) for at, a in zip(argument_at, other.args, strict=True)
    ]
    for at, op in zip(op_at, other.ops, strict=True):
        like = listed[at]
        values += zip(like.results, op.results, strict=True)
        if isinstance(op, ComputeOp) and isinstance(like, ComputeOp) and like in strategy.ops:
            signatures[op] = strategy.ops[like]
    homes = {value: strategy.homes[like] for like, value in values if like in strategy.homes}
    copies = {value: strategy.copies[like] for like, value in values if like in strategy.copies}
    return Strategy(signatures, homes, copies, strategy.saves_memory)


@dataclass(frozen=True)
class PackedStrategy:
    """
    A strategy that refers to ops and values by position rather than by IR object.

    Args:
        ops: positions of ops in their block, with their signatures.
        homes: homes of values; a value is the position of its op (-1 for an argument) and its index there.
        copies: working copies of values, identified in the same way.
    """

    ops: tuple[tuple[int, Signature], ...]
    homes: tuple[tuple[tuple[int, int], Sharding], ...]
    copies: tuple[tuple[tuple[int, int], tuple[Sharding, bool]], ...]
    saves_memory: bool


def packed(strategy: Strategy, view: StepView) -> PackedStrategy:
    """Return a strategy of a step in a form that another process can read."""
    numbers: dict[Operation, int] = {op: at for at, op in enumerate(view.func.body.block.ops)}

    def place(value: SSAValue) -> tuple[int, int]:
        if isinstance(value, OpResult):
            return numbers[value.op], value.index
        assert isinstance(value, BlockArgument)
        return -1, value.index

    return PackedStrategy(
        tuple((numbers[op], signature) for op, signature in strategy.ops.items()),
        tuple((place(value), home) for value, home in strategy.homes.items()),
        tuple((place(value), copy) for value, copy in strategy.copies.items()),
        strategy.saves_memory,
    )


def unpacked(given: PackedStrategy, view: StepView) -> Strategy:
    """Return the strategy on an equal step from its packed form."""
    block = view.func.body.block
    listed = list(block.ops)

    def value(place: tuple[int, int]) -> SSAValue:
        at, index = place
        return block.args[index] if at < 0 else listed[at].results[index]

    signatures: dict[ComputeOp, Signature] = {}
    for at, signature in given.ops:
        op = listed[at]
        assert isinstance(op, ComputeOp)
        signatures[op] = signature
    homes = {value(place): home for place, home in given.homes}
    return Strategy(signatures, homes, {value(place): copy for place, copy in given.copies}, given.saves_memory)
