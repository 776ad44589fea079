"""The step function as a search sees it: its compute ops, its arguments' roles, and who uses which value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue, Use
from xdsl.utils.exceptions import PassFailedException

from ...dialects import train
from ...dialects.compute import ComputeOp, shape_of
from ...dialects.mesh_ops import ClusterOp, MeshOp
from ...dialects.pipe import TransferOp
from ...dialects.placed import argument_attribute
from ...dialects.staged import Stages, transfers
from ...dialects.step import NO_ROWS
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ..errors import fail


@dataclass(frozen=True)
class Input:
    """
    One argument of the step: its role attribute, and its name (`h.0.weight`, `h.0.weight.exp_avg`,
    `batch.0`).
    """

    argument: BlockArgument
    role: str
    name: str

    @property
    def rows(self) -> int:
        """How many rows it has as an item of the batch; 0 where it has none."""
        shape = shape_of(self.argument)
        has_rows = self.role == train.BATCH and argument_attribute(self.argument, NO_ROWS) is None
        return shape[0] if has_rows and shape else 0


def batch_rows(inputs: Iterable[Input]) -> int | None:
    """The number of rows of the batch, by the first item that has any; return None if the batch has no rows."""
    return next((given.rows for given in inputs if given.rows), None)


@dataclass(frozen=True)
class StepView:
    """
    One step function with its mesh; of a pipeline one stage, with what happens on its mesh.

    Args:
        stage: its number; None is the whole function.
    """

    func: FuncOp
    mesh: Mesh
    stage: int | None = None

    @cached_property
    def stages(self) -> Stages:
        """The stages of the function."""
        return Stages(self.func)

    @property
    def whole(self) -> StepView:
        """The function with all of its stages, as if they were on this mesh."""
        return StepView(self.func, self.mesh)

    def has(self, what: Operation | SSAValue) -> bool:
        """Whether an op or a value is on this stage."""
        if self.stage is None:
            return True
        found = self.stages.of_value(what) if isinstance(what, SSAValue) else self.stages.of_op(what)
        return found == self.stage

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The arguments with their roles, in order."""
        attributes = self.func.arg_attrs.data if self.func.arg_attrs is not None else ()
        return tuple(
            _input(argument, attributes[i].data if i < len(attributes) else {})
            for i, argument in enumerate(self.func.body.block.args)
            if self.has(argument)
        )

    @cached_property
    def ops(self) -> tuple[ComputeOp, ...]:
        """The compute ops in program order."""
        return tuple(op for op in self.func.body.block.ops if isinstance(op, ComputeOp) and self.has(op))

    @cached_property
    def arrivals(self) -> tuple[TransferOp, ...]:
        """The transfers that bring values to this stage."""
        return tuple(op for op in transfers(self.func) if self.has(op.result))

    @cached_property
    def departures(self) -> tuple[TransferOp, ...]:
        """The transfers that take values of this stage to another."""
        return tuple(op for op in transfers(self.func) if self.has(op.operand))

    @cached_property
    def terminator(self) -> ReturnOp:
        """The return of the function."""
        last = self.func.body.block.last_op
        assert isinstance(last, ReturnOp)
        return last

    def result_attributes(self, index: int) -> dict[str, Attribute]:
        """The role attributes of one result."""
        listed = self.func.res_attrs.data if self.func.res_attrs is not None else ()
        return dict(listed[index].data) if index < len(listed) else {}

    def is_for_all(self, index: int) -> bool:
        """Whether a result is for every rank, whole: the loss, and metrics."""
        roles = self.result_attributes(index)
        return train.LOSS in roles or train.METRIC in roles

    @cached_property
    def updated(self) -> dict[int, int]:
        """Which argument each result is the new value of: result index -> argument index."""
        found: dict[int, int] = {}
        for index in range(len(self.terminator.arguments)):
            target = self.result_attributes(index).get(train.UPDATES)
            if isinstance(target, IntegerAttr):
                found[index] = target.value.data
        return found

    def is_update_use(self, use: Use) -> bool:
        """Whether a use of an argument is by the ops that make its new value."""
        op = use.operation
        return train.is_update(op)

    def grads(self) -> Iterator[tuple[str, ComputeOp, int]]:
        """Each parameter's name with the ops of its update that take its gradient, and the operand by which they do."""
        names = {id(i.argument): i.name for i in self.inputs if i.role == train.PARAM}
        for op in self.ops:
            name = names.get(id(op.args[0])) if isinstance(op, train.TrainOp) else train.updated_parameter(op)
            if name is not None:
                yield from ((name, op, at) for at in train.gradients_of(op))


def _input(argument: BlockArgument, attributes: Mapping[str, Attribute]) -> Input:
    role = next((role for role in train.ROLES if role in attributes), "")
    value = attributes.get(role)
    match value:
        case StringAttr():
            name = f"batch.{value.data}" if role == train.BATCH else value.data
        case ArrayAttr():
            name = ".".join(part.data for part in value if isinstance(part, StringAttr))
        case _:
            name = argument.name_hint or f"arg{argument.index}"
    return Input(argument, role, name)


def step_functions(module: ModuleOp) -> list[FuncOp]:
    """The functions of tensors of the module that have a body in one piece: a step has no branches."""
    found = [op for op in module.ops if isinstance(op, FuncOp) and len(op.body.blocks) == 1]
    of_tensors = [op for op in found if all(isinstance(value.type, TensorType) for value in op.args)]
    return [op for op in of_tensors if isinstance(op.body.block.last_op, ReturnOp)]


def mesh_of_module(module: ModuleOp) -> Mesh:
    """The module's mesh; PassFailedException where there is none."""
    for op in module.ops:
        if isinstance(op, MeshOp):
            return op.mesh
    raise PassFailedException('the module has no mesh; add one, as `spmd.mesh @mesh = <["gpu"=4]>`')


def cluster_of_module(module: ModuleOp) -> Cluster:
    """The module's cluster; PassFailedException where there is none."""
    return cluster_on(module, mesh_of_module(module))


def cluster_on(module: ModuleOp, mesh: Mesh) -> Cluster:
    """The cluster whose mesh is `mesh`; PassFailedException where there is none."""
    clusters = [op for op in module.ops if isinstance(op, ClusterOp)]
    for op in clusters:
        if op.mesh.data == mesh.name:
            try:
                return op.cluster(mesh)
            except ValueError as error:
                raise PassFailedException(str(error)) from error
    if clusters:
        first = clusters[0]
        raise PassFailedException(
            f"cluster @{first.sym_name.data} refers to mesh @{first.mesh.data}, but the mesh is @{mesh.name}"
        )
    raise PassFailedException(
        "the module has no spmd.cluster, so there are no costs to search with; run `add-cluster{file=...}` first"
    )


def step_views(module: ModuleOp) -> list[tuple[StepView, Cluster]]:
    """
    Every step function with its cluster; of a pipeline every stage with its own.

    OpFailure at a function for which there is none.
    """
    found: list[tuple[StepView, Cluster]] = []
    for func in step_functions(module):
        try:
            for stage, mesh in stage_meshes(module, func):
                found.append((StepView(func, mesh, stage), cluster_on(module, mesh)))
        except PassFailedException as error:
            fail(func, str(error))
    return found


def stage_meshes(module: ModuleOp, func: FuncOp) -> list[tuple[int | None, Mesh]]:
    """The stages of a function with their meshes; the module's mesh, of no stage, where it is no pipeline."""
    names = Stages(func).names
    if not names:
        return [(None, mesh_of_module(module))]
    meshes = {op.sym_name.data: op.mesh for op in module.ops if isinstance(op, MeshOp)}
    return [(stage, meshes[name]) for stage, name in enumerate(names)]


def value_label(value: SSAValue) -> str:
    """A value's name for messages."""
    return f"%{value.name_hint}" if value.name_hint else "an unnamed value"
