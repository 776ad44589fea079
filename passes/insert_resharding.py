"""Insert an op at every change of sharding."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.passes import ModulePass

from ..dialects.compute import ComputeOp
from ..dialects.sharding_attrs import ShardingAttr
from ..dialects.spmd import ReshardOp
from ..dialects.step import (
    BACKWARD,
    MEMORY_SAVING,
    SHARDING,
    demanded_sharding,
    is_regathered,
    merge_result_attributes,
    sharding_of,
    working_of,
)
from ..ir.cluster import Cluster
from ..ir.collectives import Step
from ..ir.sharding import Reduction, Sharding
from .analysis.resharding import reshard_costs
from .analysis.resharding_plan import ReshardingPlan
from .errors import fail
from .step.requirements import require_no_fragments, require_nothing_started
from .step.step_view import StepView, step_views


@dataclass(frozen=True)
class InsertReshardingPass(ModulePass):
    """
    Make every change of sharding an op.

    Requires: signatures on all compute ops (`search-strategy`), a cluster.
    Ensures: every operand has the sharding that its op's signature demands. Each `spmd.reshard` is one collective; a
    change that takes several is a chain of them, the cheapest on this cluster. A resharding comes before its first user
    or, if only updates use it, right after its value is computed. Users with the same demand share it, except that a
    working copy marked `spmd.regather` is gathered once for forward and again for backward. A partial value is summed
    once, and its other shardings are produced from that sum, so that a comparison of values that two users compute from
    it sees one number; ops between such a value and the comparison may not pass partial sums on. In memory-saving mode
    (`spmd.memory_saving`), every sharding but homes and working copies is produced once for forward and again for
    backward, and a working copy replaces its value. Transfers between stages carry no partial values. Results carry
    their `spmd.sharding`.

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

    per_part: bool = False
    """Whether each micro-batch reduces the gradients of the parameters that it gathers (`accumulate`), as FSDP does; by
    default the sum over the micro-batches is reduced, which sends less and holds more."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for view, cluster in step_views(op):
            insert_resharding(view, cluster, per_part=self.per_part)


def insert_resharding(view: StepView, cluster: Cluster, *, per_part: bool = False) -> None:
    """Make every change of sharding of one step, or of one stage, an op."""
    require_no_fragments(view.func, InsertReshardingPass.name)
    require_nothing_started(view.func, InsertReshardingPass.name)
    _Inserter(view, reshard_costs(cluster), per_part=per_part).run()


class _Inserter(ReshardingPlan[SSAValue]):
    """An insertion of the reshardings of one function; used once."""

    def run(self) -> None:
        """Insert the reshardings, and write the sharding of every result of the function."""
        for op in self.comparisons.ops:
            _verify_whole_sums(op)
        super().run()
        listed = [(index, value) for index, value in enumerate(self.view.terminator.arguments) if self.view.has(value)]
        mesh = self.view.mesh.name
        shardings = {index: {SHARDING: ShardingAttr.of(mesh, sharding_of(value))} for index, value in listed}
        merge_result_attributes(self.view.func, shardings)

    def itself(self, value: SSAValue) -> SSAValue:
        return value

    def home(self, value: SSAValue) -> Sharding:
        return sharding_of(value)

    def working(self, value: SSAValue) -> tuple[Sharding, bool] | None:
        copy = working_of(value)
        return (copy, is_regathered(value)) if copy is not None else None

    def demand(self, op: ComputeOp, index: int) -> Sharding:
        if (sharding := demanded_sharding(op, index)) is None:
            fail(op, "has no signature; run search-strategy before insert-resharding")
        return sharding

    @property
    def saves_memory(self) -> bool:
        return MEMORY_SAVING in self.view.func.attributes

    def make(
        self, value: SSAValue, start: SSAValue, step: Step, before: Operation, user: Operation, again: bool
    ) -> SSAValue:
        op = ReshardOp(start, ShardingAttr.of(self.view.mesh.name, step.target), regather=again)
        op.location = user.location
        op.result.name_hint = f"{value.name_hint}.{step.kind.value}" if value.name_hint else step.kind.value
        if BACKWARD in user.attributes:
            op.attributes[BACKWARD] = user.attributes[BACKWARD]
        self.view.func.body.block.insert_op_before(op, before)
        return op.result

    def give(self, use: Use, copy: SSAValue) -> None:
        use.operation.operands[use.index] = copy


def _verify_whole_sums(op: ComputeOp) -> None:
    """Fail if an op on the way from a value to a comparison of two results of it passes partial sums on."""
    signed = op.signature
    shardings = () if signed is None else (*signed.operands, *signed.results)
    if any(kind is Reduction.SUM for sharding in shardings for _, kind in sharding.partial):
        fail(
            op,
            f"passes partial sums on, {signed}, but its result is compared with other values computed from the same"
            " value, and sums before and after an op are rounded differently; give it a signature without partial sums",
        )
