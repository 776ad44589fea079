"""The pass `insert-resharding`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue, Use
from xdsl.passes import ModulePass

from ..dialects import train
from ..dialects.compute import ComputeOp, element_bytes, shape_of
from ..dialects.pipe import TransferOp
from ..dialects.ratios import ratios_of
from ..dialects.sharding_attrs import ShardingAttr
from ..dialects.spmd import ReshardOp
from ..dialects.step import (
    BACKWARD,
    SHARDING,
    demanded_sharding,
    is_regathered,
    merge_result_attributes,
    sharding_of,
    working_of,
)
from ..ir.cluster import Cluster
from ..ir.ratios import Splits
from ..ir.sharding import Sharding
from .analysis.factors import Factors
from .analysis.resharding import ReshardCosts
from .errors import fail
from .search.step_view import StepView, step_views


@dataclass(frozen=True)
class InsertReshardingPass(ModulePass):
    """
    Make every change of sharding an op.

    Requires: signatures on all compute ops (`search-strategy`), a cluster.
    Ensures: every operand has the sharding that its op's signature demands; each `spmd.reshard` is one
    collective, a change that takes several is a chain of them, the cheapest on this cluster. A resharding
    stands before its first user; users with the same demand share it, except that a working copy marked
    `spmd.regather` is made once for forward and again for backward. What a transfer takes to another stage is no
    partial value. Results carry their `spmd.sharding`.

    Before:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(
      %w: tensor<8x8xf32> {train.param = "w", spmd.sharding = #rows},
      %x: tensor<8x8xf32> {train.batch = "0", spmd.sharding = #rows}
    ) -> tensor<8x8xf32> {
      %y = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      func.return %y : tensor<8x8xf32>
    }
    ```

    After:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(
      %w: tensor<8x8xf32> {train.param = "w", spmd.sharding = #rows},
      %x: tensor<8x8xf32> {train.batch = "0", spmd.sharding = #rows}
    ) -> (tensor<8x8xf32> {spmd.sharding = #rows}) {
      %w.all_gather = spmd.reshard %w to <@mesh, [{}, {}]> : tensor<8x8xf32>
      %y = aten.mm %x, %w.all_gather
        {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      func.return %y : tensor<8x8xf32>
    }
    ```

    Source: AutoDDL 4.3.
    """

    name = "insert-resharding"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for view, cluster in step_views(op):
            insert_resharding(view, cluster)


def insert_resharding(view: StepView, cluster: Cluster) -> None:
    """Make every change of sharding of one step, or of one stage, an op."""
    _Inserter(view, ReshardCosts(cluster)).run()


@dataclass
class _Copies:
    """The forms of one value that exist so far, by phase (whether regathered for backward) and sharding."""

    made: dict[tuple[bool, Sharding], SSAValue] = field(default_factory=dict[tuple[bool, Sharding], SSAValue])


class _Inserter:
    """Inserts the reshardings of one function; one use."""

    def __init__(self, view: StepView, costs: ReshardCosts) -> None:
        self.view, self.costs = view, costs
        self.spatial = {axis.name for axis in view.mesh.spatial}
        self.splits: dict[SSAValue, Splits] = {}
        self.order = {op: i for i, op in enumerate(view.func.body.block.ops)}
        self.copies: dict[SSAValue, _Copies] = {}

    def run(self) -> None:
        block: Block = self.view.func.body.block
        # Of the program as it is; the reshardings that are put in do not change how values are divided.
        factors = Factors(self.view, ratios_of(self.view.func, self.view.mesh))
        values: list[SSAValue] = [*block.args, *(r for op in list(block.ops) for r in op.results)]
        values = list(filter(self.view.has, values))
        self.splits |= {value: factors.of_value(value) for value in values}
        for value in values:
            self._value(value)
        self._results(self.view.func)

    def _value(self, value: SSAValue) -> None:
        """Give each user of `value` the form it demands, in program order."""
        copies = self.copies.setdefault(value, _Copies())
        uses = sorted(value.uses, key=lambda use: (self.order[use.operation], use.index))
        for use in uses:
            op = use.operation
            if isinstance(op, ComputeOp):
                demand = demanded_sharding(op, use.index)
                if demand is None:
                    fail(op, "has no signature; run search-strategy before insert-resharding")
                self._serve(value, use, demand, copies)
            elif isinstance(op, TransferOp):
                self._depart(value, use, copies)

    def _depart(self, value: SSAValue, use: Use, copies: _Copies) -> None:
        """What goes to another stage is no partial value but over time: it is reduced in the cheapest way."""
        home, transfer = sharding_of(value), use.operation
        wanted = sharding_of(transfer.results[0]).partial_axes
        summed = replace(home, partial=tuple(p for p in home.partial if p[0] in self.spatial or p[0] in wanted))
        target = self.costs.cheapest_reduced(self.splits[value], element_bytes(value), summed)
        transfer.operands[use.index] = self._form(value, value, home, target, transfer, False, copies)

    def _serve(self, value: SSAValue, use: Use, demand: Sharding, copies: _Copies) -> None:
        home = sharding_of(value)
        if demand == home:
            return
        direct = isinstance(value, BlockArgument) and isinstance(use.operation, train.TrainOp)
        working = working_of(value) if not direct else None
        again = is_regathered(value) and BACKWARD in use.operation.attributes and not direct
        start = value
        if working is not None and working != home:
            start = self._form(value, value, home, working, use.operation, again, copies)
        source = working if working is not None else home
        use.operation.operands[use.index] = self._form(
            value, start, source, demand, use.operation, again, copies
        )

    def _form(
        self,
        value: SSAValue,
        start: SSAValue,
        source: Sharding,
        target: Sharding,
        before: Operation,
        again: bool,
        copies: _Copies,
    ) -> SSAValue:
        """
        `value` in sharding `target`, made from its form `start` in `source` before the op `before`, if
        needed.
        """
        if source == target:
            return start
        key = (again, target)
        if key not in copies.made:
            copies.made[key] = self._chain(value, start, source, target, before, again, copies)
        return copies.made[key]

    def _chain(
        self,
        value: SSAValue,
        start: SSAValue,
        source: Sharding,
        target: Sharding,
        before: Operation,
        again: bool,
        copies: _Copies,
    ) -> SSAValue:
        """A chain of reshardings; steps over time are shared with the other chains of the value."""
        block = self.view.func.body.block
        for step in self.costs.path(self.splits[value], element_bytes(value), source, target):
            key, over_time = (again, step.target), not self.spatial.issuperset(step.axes)
            if over_time and key in copies.made:
                start = copies.made[key]
                continue
            op = ReshardOp(start, ShardingAttr.of(self.view.mesh.name, step.target), regather=again)
            op.location = before.location
            op.result.name_hint = (
                f"{value.name_hint}.{step.kind.value}" if value.name_hint else step.kind.value
            )
            if BACKWARD in before.attributes:
                op.attributes[BACKWARD] = before.attributes[BACKWARD]
            block.insert_op_before(op, before)
            start = op.result
            if over_time:
                copies.made[key] = start
        return start

    def _results(self, func: FuncOp) -> None:
        """New values go home, the loss becomes whole; every result then says its sharding."""
        terminator = self.view.terminator
        shardings: dict[int, dict[str, ShardingAttr]] = {}
        for index, value in enumerate(terminator.arguments):
            if not self.view.has(value):
                continue
            home = sharding_of(value)
            if (target := self.view.updated.get(index)) is not None:
                wanted = sharding_of(func.body.block.args[target])
            elif train.LOSS in self.view.result_attributes(index):
                wanted = Sharding.replicated(len(shape_of(value)))
            else:
                wanted = replace(home, partial=tuple(pair for pair in home.partial if pair[0] in self.spatial))
            if wanted != home:
                copies = self.copies.setdefault(value, _Copies())
                terminator.operands[index] = self._form(value, value, home, wanted, terminator, False, copies)
            shardings[index] = {SHARDING: ShardingAttr.of(self.view.mesh.name, wanted)}
        merge_result_attributes(func, shardings)
