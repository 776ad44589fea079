"""The pass `duplex`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from ..dialects.pipe import TransferOp
from ..dialects.placed import AT, parts_of
from ..dialects.spmd import AccumulateOp, CollectiveOp, StartOp, WaitOp
from ..dialects.step import BACKWARD
from ..ir.mesh import Mesh
from .errors import fail
from .step.loop import communicates, is_in_loop, is_sum_over, temporal_axis
from .step.memory_plan import forget_memory_plan
from .step.step_view import mesh_of_module, step_functions, value_label

PARTS = "ab"
"""What the two parts are called in the names of values."""


@dataclass(frozen=True)
class DuplexPass(ModulePass):
    """
    Run two parts of the batch at once: each communicates while the other computes.

    The loop is unrolled and divided into phases: a communication step, then the computation that it is for. An op is
    in the phase of as many communications, one after the other, as lead to it. The parts a and b take turns:
    `start a.comm k; b.compute k-1; wait a.comm k; start b.comm k; a.compute k; wait b.comm k`, for k = 0, 1, ...

    Requires: a temporal axis of two parts (`split-batch`) and collectives (`select-collectives`).
    Ensures: every op in the loop is there twice and says by `spmd.at` for which part; its collectives are `spmd.start`
    and `spmd.wait`, and each part crosses to another stage by a transfer of its own. A sum over the axis is a
    `spmd.accumulate` as soon as both parts are there. What runs once comes where it is first needed. Frees are
    dropped: run `insert-frees` after it.

    Before:
    ```mlir
    spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<f32> {
      %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
      %h = aten.exp %p {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %q = spmd.slice [{}, {"gpu"}] %h out_sharding = <@mesh, [{"micro"}, {"gpu"}]> : tensor<8x4xf32>
      %r = spmd.all_gather [{}, {"gpu"}] %q out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
      %s = aten.sum %r {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>}
        : (tensor<8x4xf32>) -> tensor<f32>
      %t = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
      func.return %t : tensor<f32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<f32> {
      %p.a = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]>
        {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %h.a = aten.exp %p.a {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>,
        spmd.at = {"micro" = 0 : i64}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %q.a = spmd.slice [{}, {"gpu"}] %h.a out_sharding = <@mesh, [{"micro"}, {"gpu"}]>
        {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %r.a.started = spmd.start "all_gather" %q.a out_shardings = [#spmd.sharding<@mesh, [{"micro"}, {}]>]
        {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %p.b = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]>
        {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %h.b = aten.exp %p.b {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>,
        spmd.at = {"micro" = 1 : i64}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %q.b = spmd.slice [{}, {"gpu"}] %h.b out_sharding = <@mesh, [{"micro"}, {"gpu"}]>
        {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %r.a = spmd.wait %r.a.started {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %r.b.started = spmd.start "all_gather" %q.b out_shardings = [#spmd.sharding<@mesh, [{"micro"}, {}]>]
        {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %s.a = aten.sum %r.a {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>,
        spmd.at = {"micro" = 0 : i64}} : (tensor<8x4xf32>) -> tensor<f32>
      %r.b = spmd.wait %r.b.started {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %s.b = aten.sum %r.b {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>,
        spmd.at = {"micro" = 1 : i64}} : (tensor<8x4xf32>) -> tensor<f32>
      %t = spmd.accumulate %s.a, %s.b out_sharding = <@mesh, []> : tensor<f32>
      func.return %t : tensor<f32>
    }
    ```

    Source: HiDup 4.1 (stages, which are phases here) and 5 (the compiler's order).
    """

    name = "duplex"

    axis: str | None = None
    """The temporal axis; by default the only one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        mesh = mesh_of_module(op)
        for func in step_functions(op):
            axis = temporal_axis(func, mesh, self.axis)
            if (parts := mesh.axis(axis).size) != 2:
                fail(func, f'axis "{axis}" has {parts} parts; duplex needs 2: split-batch{{parts=2}}, or accumulate')
            _Unroller(func, mesh, axis).run()


class _Unroller:
    """Unrolls the loop of one function and writes both parts in turns; one use."""

    def __init__(self, func: FuncOp, mesh: Mesh, axis: str) -> None:
        self.block, self.mesh, self.axis = func.body.block, mesh, axis
        forget_memory_plan(self.block)
        self.ops = [op for op in self.block.ops if op is not self.block.last_op]
        self.inside = [op for op in self.ops if is_in_loop(op, axis)]
        self.within = set(self.inside)
        self.once = {op for op in self.ops if op not in self.within}
        self.made: tuple[dict[SSAValue, SSAValue], ...] = ({}, {})
        self.started: dict[tuple[int, Operation], StartOp] = {}
        self.written: set[Operation] = set()

    def run(self) -> None:
        """Take all ops out of the block and put them back: the loop in turns, what runs once where it is needed."""
        self._check()
        phases = _phases(self.ops, self.within, self._communicates)
        end = self.block.last_op
        assert end is not None, "a step function returns"
        for op in list(self.block.ops):
            op.detach()
        do = {"start": self._start, "wait": self._wait, "compute": self._compute}
        for part, step, op in _turns(phases):
            do[step](part, op)
        for op in (*self.ops, end):
            if op not in self.within:
                self._once(op)
        for op in reversed(self.ops):
            if op in self.within or is_sum_over(op, self.axis):
                op.erase()

    def _check(self) -> None:
        """Refuse a loop of which more than reductions over the parts is read outside."""
        for op in self.inside:
            for use in (use for result in op.results for use in result.uses):
                user = use.operation
                if user not in self.within and not is_sum_over(user, self.axis):
                    value = user.operands[use.index]
                    fail(
                        user,
                        f"reads {value_label(value)}, which differs between the parts along \"{self.axis}\" has one; "
                        "expected a reduction of it: run insert-resharding before duplex",
                    )

    def _communicates(self, op: Operation) -> bool:
        return op in self.within and communicates(op, self.mesh)

    def _compute(self, part: int, op: Operation) -> None:
        """The copy of an op for one part; sums follow it that are complete by it."""
        self._needed(op)
        copy = op.clone(dict(self.made[part]))
        copy.attributes[AT] = self._at(op, part)
        if isinstance(copy, TransferOp):
            copy.label = StringAttr(f"{copy.label.data}.{PARTS[part]}")
        self._add(copy, op)
        self._enter(part, op.results, copy.results)

    def _start(self, part: int, op: Operation) -> None:
        assert isinstance(op, CollectiveOp)
        self._needed(op)
        method = op.method.data if op.method is not None else None
        start = StartOp(op.KIND, [self._of_part(part, op.operand)], [op.out_sharding], method)
        hint = op.result.name_hint
        start.token.name_hint = f"{hint or op.KIND}.{PARTS[part]}.started"
        start.attributes[AT] = self._at(op, part)
        self.started[part, op] = start
        self._add(start, op)

    def _wait(self, part: int, op: Operation) -> None:
        wait = WaitOp(self.started.pop((part, op)))
        wait.attributes[AT] = self._at(op, part)
        self._add(wait, op)
        self._enter(part, op.results, wait.results)

    def _at(self, op: Operation, part: int) -> DictionaryAttr:
        return DictionaryAttr({name: IntegerAttr(at, i64) for name, at in {**parts_of(op), self.axis: part}.items()})

    def _of_part(self, part: int, value: SSAValue) -> SSAValue:
        return self.made[part].get(value, value)

    def _enter(self, part: int, results: Sequence[SSAValue], copies: Sequence[SSAValue]) -> None:
        for result, copy in zip(results, copies, strict=True):
            copy.name_hint = f"{result.name_hint}.{PARTS[part]}" if result.name_hint else None
            self.made[part][result] = copy
            if all(result in made for made in self.made):
                for op in dict.fromkeys(use.operation for use in result.uses):
                    if is_sum_over(op, self.axis):
                        self._once(op)

    def _needed(self, op: Operation) -> None:
        """Write what runs once and makes operands of `op`."""
        for value in op.operands:
            if isinstance(value, OpResult) and value.op in self.once:
                self._once(value.op)

    def _once(self, op: Operation) -> None:
        """Write an op that runs once, after what it needs; a sum over the axis is that of two parts."""
        if op in self.written:
            return
        self.written.add(op)
        if is_sum_over(op, self.axis):
            assert isinstance(op, CollectiveOp)
            first, second = (self._of_part(part, op.operand) for part in (0, 1))
            total = AccumulateOp(first, second, op.out_sharding)
            total.result.name_hint = op.result.name_hint
            self._add(total, op)
            op.result.replace_all_uses_with(total.result)
            return
        self._needed(op)
        self.block.add_op(op)

    def _add(self, op: Operation, like: Operation) -> None:
        """Add an op with the place and phase of another."""
        op.location = like.location
        if BACKWARD in like.attributes:
            op.attributes[BACKWARD] = like.attributes[BACKWARD]
        self.block.add_op(op)


@dataclass(frozen=True)
class _DuplexPhase:
    """A communication step and the computation that follows it, each in program order."""

    communications: Sequence[Operation]
    computations: Sequence[Operation]


def _phases(
    ops: Iterable[Operation], within: set[Operation], communicates: Callable[[Operation], bool]
) -> list[_DuplexPhase]:
    """
    The phases of a loop.

    Of what runs once, that which needs a sum over the parts comes between two phases.
    """
    number: dict[Operation, int] = {}
    late: set[Operation] = set()
    for op in ops:
        sources = [value.op for value in op.operands if isinstance(value, OpResult)]
        before = max((number[source] for source in sources), default=0)
        if op not in within and any(source in within or source in late for source in sources):
            late.add(op)
        # What sums both parts is made only when this phase is over.
        waits = op in within and any(source in late and number[source] == before for source in sources)
        number[op] = before + (waits or communicates(op))
    count = max((number[op] for op in within), default=-1) + 1
    phases: list[tuple[list[Operation], list[Operation]]] = [([], []) for _ in range(count)]
    for op in ops:
        if op in within:
            phases[number[op]][0 if communicates(op) else 1].append(op)
    return [_DuplexPhase(*phase) for phase in phases]


_Turn: TypeAlias = tuple[int, str, Operation]
"""A part, and what it does with an op: start, wait or compute."""


def _turns(phases: Sequence[_DuplexPhase]) -> Iterator[_Turn]:
    """The order in which both parts go through the phases: while one communicates the other computes."""
    a, b = 0, 1
    previous: Sequence[Operation] = ()
    for phase in phases:
        yield from ((a, "start", op) for op in phase.communications)
        yield from ((b, "compute", op) for op in previous)
        yield from ((a, "wait", op) for op in phase.communications)
        yield from ((b, "start", op) for op in phase.communications)
        yield from ((a, "compute", op) for op in phase.computations)
        yield from ((b, "wait", op) for op in phase.communications)
        previous = phase.computations
    yield from ((b, "compute", op) for op in previous)
