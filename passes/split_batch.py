"""Split the batch of a step into micro-batches along a temporal axis of its meshes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue, Use
from xdsl.passes import ModulePass

from ..dialects import train
from ..dialects.compute import SIGNATURE, ComputeOp, shape_of
from ..dialects.mesh_ops import MeshOp
from ..dialects.pipe import TransferOp
from ..dialects.ratios import ratios_of, segment_of
from ..dialects.sharding_attrs import MeshAttr, ShardingAttr, SignatureAttr
from ..dialects.step import SHARDING, WORKING, argument_attribute, attribute_of, merge_argument_attributes
from ..ir.mesh import Axis, AxisKind, Mesh
from ..ir.ratios import EVEN, boundaries
from ..ir.rules import Rule
from ..ir.sharding import DimSharding, Offsets, Sharding, dim_sharding
from ..ir.signatures import Choice, Signature, Split, choices_of, signature, split_axes
from .errors import fail
from .step.batch_parts import Batch, BatchParts, find_parts
from .step.requirements import require_no_resharding
from .step.step_view import StepView, batch_rows, mesh_of_module, step_functions


@dataclass(frozen=True)
class SplitBatchPass(ModulePass):
    """
    Split the batch into micro-batches that run in sequence, by a temporal axis on top of the strategy.

    The axis becomes the first of every mesh: a micro-batch is spread over the devices as the full batch was. Each op's
    choice on it follows from the split of the batch. Ops on micro-batches give micro-batches; sums over the batch
    (gradients, the loss) are partial over the axis; updates run once, after all micro-batches. Counts of labels, and
    other values that depend on the batch alone and are needed for the full batch, are computed once, before the
    micro-batches.

    Requires: signatures (`search-strategy`) on the ops of a step without means of the batch (`decompose-mean`).
    Ensures: meshes have the axis, and signatures, homes and working copies refer to it. Arguments stay replicated over
    time; batch items are no longer split along the batch, because a micro-batch is a part of the full batch. An op that
    needs the full batch between the micro-batches is an error.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
        -> tensor<4xf32> {
      %h = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %g = aten.sum.dim_IntList %h {dim = [0 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
      } : (tensor<8x4xf32>) -> tensor<4xf32>
      func.return %g : tensor<4xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>})
        -> tensor<4xf32> {
      %h = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}]) -> ([{"micro", "gpu"}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %g = aten.sum.dim_IntList %h {dim = [0 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}]) -> ([{}], unreduced={"micro", "gpu"})>
      } : (tensor<8x4xf32>) -> tensor<4xf32>
      func.return %g : tensor<4xf32>
    }
    ```

    Source: HiDup 3; time as a mesh axis.
    """

    name = "split-batch"

    parts: int = 2
    """Number of micro-batches."""

    axis: str = "micro"
    """Name of the axis."""

    unrolled: bool = False
    """Whether `duplex` will unroll the axis: then sums over the batch may be needed between its micro-batches."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Split the batch of every step function of the module."""
        for func in step_functions(op):
            require_no_resharding(func, self.name)
            view = StepView(func, mesh_of_module(op))
            if (rows := batch_rows(view.inputs)) is None:
                fail(func, "has no batch argument with a dim to split; expected one with a first dim")
            if rows < self.parts:
                fail(func, f"the batch of {rows} rows is too small for {self.parts} parts; use at most {rows}")
            batch = Batch(rows, self.axis, self.parts, self.unrolled)
            parts = find_parts(list(func.body.block.ops), view.inputs, batch)
            _Splitter(func, batch, parts, _add_axis(op, batch)).run()


def _add_axis(module: ModuleOp, batch: Batch) -> dict[str, tuple[Mesh, Mesh]]:
    """Add the new axis to every mesh of the module, after existing temporal axes; return each mesh before and after."""
    meshes: dict[str, tuple[Mesh, Mesh]] = {}
    for op in module.ops:
        if not isinstance(op, MeshOp):
            continue
        old = op.mesh
        if batch.axis in old.names:
            fail(op, f'already has an axis "{batch.axis}"; name another: split-batch{{axis="{batch.axis}2"}}')
        temporal = [axis for axis in old.axes if axis.kind is AxisKind.TEMPORAL]
        new = Mesh((*temporal, Axis(batch.axis, batch.parts, AxisKind.TEMPORAL), *old.spatial), old.name)
        op.axes = MeshAttr(Mesh(new.axes))
        meshes[old.name] = old, new
    return meshes


class _Splitter:
    """A rewrite of one function for the split; used once."""

    def __init__(self, func: FuncOp, batch: Batch, found: BatchParts, meshes: Mapping[str, tuple[Mesh, Mesh]]) -> None:
        self.func, self.batch, self.found, self.meshes = func, batch, found, meshes
        self.known: dict[tuple[Rule, Signature, Choice, str], Signature] = {}

    def run(self) -> None:
        """Write signatures first, because the other attributes depend on the demands that they make."""
        for op in self.func.body.block.ops:
            if isinstance(op, ComputeOp):
                self._sign(op)
            elif isinstance(op, TransferOp) and op.out_sharding is not None:
                op.out_sharding = self._over_parts(op.out_sharding, op.result, self.found.values[op.result])
        arguments = self.func.body.block.args
        merge_argument_attributes(self.func, {argument.index: self._argument(argument) for argument in arguments})
        for op in self.func.body.block.ops:
            if WORKING in op.attributes:
                copies = [self._working(result) for result in op.results]
                op.attributes[WORKING] = ArrayAttr([copy if copy is not None else UnitAttr() for copy in copies])
        for value in self.func.body.block.last_op.operands if self.func.body.block.last_op is not None else ():
            if isinstance(value, OpResult) and self.found.values[value].split_axes:
                fail(
                    value.op,
                    "a result of the step is split along the batch; only sums over the batch can be returned",
                )

    def _sign(self, op: ComputeOp) -> None:
        attribute = op.attributes.get(SIGNATURE)
        if not isinstance(attribute, SignatureAttr):
            fail(op, "has no signature; run search-strategy before split-batch")
        name, signed, choice = attribute.data.mesh, attribute.signature, self.found.choices[op]
        key = (op.rule(), signed, choice, name)
        if key not in self.known:
            self.known[key] = self._signature(op, signed, choice, name)
        op.attributes[SIGNATURE] = SignatureAttr.of(name, self.known[key])

    def _signature(self, op: ComputeOp, given: Signature, choice: Choice, name: str) -> Signature:
        """Return `given` with a choice on the new axis; the boundaries of split factors follow the batch's rows."""
        old, new = self.meshes[name]
        rule = op.rule()
        listed, offsets = choices_of(rule, given, old)
        by_axis: dict[str, Choice] = {**dict(zip(old.names, listed, strict=True)), self.batch.axis: choice}
        if isinstance(choice, Split):
            factor = choice.factor
            axes = split_axes(new, [by_axis[axis] for axis in new.names])[factor]
            offsets[factor] = self._offsets(op, rule.sizes[factor], axes, new)
        signed = signature(rule, new, [by_axis[axis] for axis in new.names], offsets)
        if signed is None:
            fail(op, f"cannot be split as {given} and into {self.batch.parts} parts over time; use fewer parts")
        return signed

    def _offsets(self, op: Operation, size: int, axes: tuple[str, ...], mesh: Mesh) -> Offsets:
        """Return the boundaries of a dim or factor of `size` that contains the batch, split along `axes`."""
        rows = self.batch.rows
        ratios = ratios_of(self.func, mesh).get(segment_of(op), EVEN)
        if (parts := mesh.parts(axes)) <= rows or ratios.split(axes):
            scaled = [divmod(size * offset, rows) for offset in boundaries(rows, axes, mesh, ratios)]
            if any(rest for _, rest in scaled):
                fail(
                    op,
                    f"it divides the batch of {rows} rows into {size} pieces, which cannot be split into {parts} parts"
                    f" at the boundaries of rows; use a number of parts that divides {math.gcd(size, rows)}",
                )
            return tuple(offset for offset, _ in scaled)
        if parts > size or rows % self.batch.parts or size % rows:
            fail(
                op,
                f"the batch of {rows} rows is too small to be split into {parts} parts, {self.batch.parts} of them over"
                f" time; use fewer parts, or a batch of {parts} rows",
            )
        # All micro-batches have equally many rows, and devices share the elements of rows.
        return boundaries(size, axes, mesh)

    def _argument(self, argument: BlockArgument) -> dict[str, Attribute | None]:
        """Return an argument's home, replicated over time, and its working copy."""
        home, changed = argument_attribute(argument, SHARDING), dict[str, Attribute | None]()
        if isinstance(home, ShardingAttr):
            dims = zip(home.sharding.dims, self.found.values[argument].dims, strict=True)
            whole = tuple(DimSharding() if part.axes else dim for dim, part in dims)
            changed[SHARDING] = ShardingAttr.of(home.data.mesh, replace(home.sharding, dims=whole))
        if argument_attribute(argument, WORKING) is not None:
            changed[WORKING] = self._working(argument)
        return changed

    def _working(self, value: SSAValue) -> ShardingAttr | None:
        """Return the working copy of a value, split over time as its users are, or None if users differ."""
        attribute = attribute_of(value, WORKING)
        demands = {time for use in value.uses if (time := self._demand(value, use)) is not None}
        if not isinstance(attribute, ShardingAttr) or len(demands) != 1:
            return None
        return self._over_parts(attribute, value, demands.pop())

    def _demand(self, value: SSAValue, use: Use) -> Sharding | None:
        """Return the placement on the new axis that a user of the working copy requires."""
        op = use.operation
        if not isinstance(op, ComputeOp) or (train.is_update(op) and isinstance(value, BlockArgument)):
            return None
        required = signature(op.rule(), self.batch.mesh, [self.found.choices[op]])
        return required.operands[use.index] if required is not None else None

    def _over_parts(self, given: ShardingAttr, value: SSAValue, time: Sharding) -> ShardingAttr:
        """Return a sharding with the placement of `time` on the new axis."""
        mesh, sharding, shape = self.meshes[given.data.mesh][1], given.sharding, shape_of(value)
        dims = list(sharding.dims)
        for index, part in enumerate(time.dims):
            if part.axes:
                axes = mesh.merged(dims[index].axes, part.axes)
                op = value.owner if isinstance(value.owner, Operation) else self.func
                offsets = self._offsets(op, shape[index], axes, mesh)
                dims[index] = dim_sharding(axes, offsets, shape[index], mesh)
        partial = dict(sharding.partial) | dict(time.partial)
        listed = tuple((axis, partial[axis]) for axis in mesh.in_order(partial))
        return ShardingAttr.of(given.data.mesh, Sharding(tuple(dims), listed))
