"""The step function as a search sees it: its compute ops, and its arguments and results with their roles."""

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
    """An argument of the step, with its role attribute and its name (`h.0.weight`, `h.0.weight.exp_avg`, `batch.0`)."""

    argument: BlockArgument
    role: str
    name: str

    @property
    def rows(self) -> int:
        """Number of rows of a batch item; 0 for other arguments."""
        shape = shape_of(self.argument)
        has_rows = self.role == train.BATCH and argument_attribute(self.argument, NO_ROWS) is None
        return shape[0] if has_rows and shape else 0


def batch_rows(inputs: Iterable[Input]) -> int | None:
    """Return the number of rows of the first batch item that has rows, or None if there is no such item."""
    return next((item.rows for item in inputs if item.rows), None)


@dataclass(frozen=True)
class StepView:
    """
    A step function with its mesh, or one stage of a pipeline with the mesh of the stage.

    Args:
        stage: index of the stage, or None for the whole function.
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
        """Return whether an op or a value is on this stage."""
        if self.stage is None:
            return True
        stage = self.stages.of_value(what) if isinstance(what, SSAValue) else self.stages.of_op(what)
        return stage == self.stage

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
        """The terminator of the function."""
        last = self.func.body.block.last_op
        assert isinstance(last, ReturnOp)
        return last

    def result_attributes(self, index: int) -> dict[str, Attribute]:
        """Return the role attributes of one result."""
        listed = self.func.res_attrs.data if self.func.res_attrs is not None else ()
        return dict(listed[index].data) if index < len(listed) else {}

    def is_for_all(self, index: int) -> bool:
        """Return whether every rank gets the whole of a result: of the loss and of metrics."""
        roles = self.result_attributes(index)
        return train.LOSS in roles or train.METRIC in roles

    @cached_property
    def updated(self) -> dict[int, int]:
        """The argument that each result is the new value of: result index -> argument index."""
        arguments: dict[int, int] = {}
        for index in range(len(self.terminator.arguments)):
            target = self.result_attributes(index).get(train.UPDATES)
            if isinstance(target, IntegerAttr):
                arguments[index] = target.value.data
        return arguments

    def is_update_use(self, use: Use) -> bool:
        """Return whether a use is by an op of the update."""
        return train.is_update(use.operation)

    def grads(self) -> Iterator[tuple[str, ComputeOp, int]]:
        """Yield each parameter's name with each update op that takes its gradient, and the index of that operand."""
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
    """Return the functions of the module that take tensors and have a single block: a step has no branches."""
    functions = [op for op in module.ops if isinstance(op, FuncOp) and len(op.body.blocks) == 1]
    of_tensors = [op for op in functions if all(isinstance(value.type, TensorType) for value in op.args)]
    return [op for op in of_tensors if isinstance(op.body.block.last_op, ReturnOp)]


def mesh_of_module(module: ModuleOp) -> Mesh:
    """Return the module's mesh. Raises PassFailedException if it has none."""
    for op in module.ops:
        if isinstance(op, MeshOp):
            return op.mesh
    raise PassFailedException('the module has no mesh; add one, as `spmd.mesh @mesh = <["gpu"=4]>`')


def cluster_of_module(module: ModuleOp) -> Cluster:
    """Return the cluster on the module's mesh. Raises PassFailedException if there is none."""
    return cluster_on(module, mesh_of_module(module))


def cluster_on(module: ModuleOp, mesh: Mesh) -> Cluster:
    """Return the cluster whose mesh is `mesh`. Raises PassFailedException if there is none."""
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
    Return every step function with its cluster; for a pipeline, every stage with its own cluster.

    Raises:
        OpFailure: at a function without a cluster.
    """
    views: list[tuple[StepView, Cluster]] = []
    for func in step_functions(module):
        try:
            for stage, mesh in stage_meshes(module, func):
                views.append((StepView(func, mesh, stage), cluster_on(module, mesh)))
        except PassFailedException as error:
            fail(func, str(error))
    return views


def stage_meshes(module: ModuleOp, func: FuncOp) -> list[tuple[int | None, Mesh]]:
    """Return the stages of a function with their meshes; for a function without stages, None with the module's mesh."""
    names = Stages(func).names
    if not names:
        return [(None, mesh_of_module(module))]
    meshes = {op.sym_name.data: op.mesh for op in module.ops if isinstance(op, MeshOp)}
    return [(stage, meshes[name]) for stage, name in enumerate(names)]


def value_label(value: SSAValue) -> str:
    """Return the name of a value for messages."""
    return f"%{value.name_hint}" if value.name_hint else "an unnamed value"
