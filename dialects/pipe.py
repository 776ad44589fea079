"""
The `pipe` dialect: work that runs once per micro-batch on the stages of a pipeline, and its schedule.

A *fragment* is a region of the step that runs once for every part of a temporal axis. A plain loop over
micro-batches is one fragment; a pipeline has several per stage (forward, backward of inputs, backward of weights).
Each stage has a mesh; a *transfer* sends a value from the mesh of one stage to the mesh of another. The schedule lists
for each stage its fragments and transfers, part by part, in execution order.

Types are global throughout: the results of a fragment hold the values of all parts, and the shardings of the yielded
values say how the temporal axis spreads them (split: concatenated; partial: summed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Data, Dialect, Operation, OpResult, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from ..ir.mesh import AxisKind
from ..ir.sharding import Sharding
from ..ir.task_order import TaskList, TaskOrder, in_turn
from ..ir.unit_tasks import Task
from .cluster_attrs import quoted
from .mesh_ops import find_mesh, verify_sharding
from .placed import GivesShardings, shape_of, sharding_of
from .sharding_attrs import ShardingAttr, parse_index, parse_indices

STAGE = "pipe.stage"
"""On an argument, or on an op outside of fragments: the number of its stage."""

STAGES = "pipe.stages"
"""On a function: the names of the stages' meshes, in order."""

IDLE = "idle"
"""Name of the mesh, and of the stage, of ranks that compute nothing (`leave-idle`)."""

SCHEDULE = "pipe.schedule"
"""On a function: for each stage, the list of its `#pipe.slot`s in execution order."""


class Action(StrEnum):
    """The action of a slot in a schedule: run a fragment, start a transfer, or wait for one."""

    RUN = "run"
    START = "start"
    WAIT = "wait"


@dataclass(frozen=True)
class Slot:
    """One entry of a schedule: an action on the fragment or transfer called `label`, for one part."""

    action: Action
    label: str
    part: int


@irdl_attr_definition
class SlotAttr(Data[Slot]):
    """An entry of a schedule: `#pipe.slot<run "forward0" 3>`."""

    name = "pipe.slot"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Slot:
        with parser.in_angle_brackets():
            at, word = parser.pos, parser.parse_identifier()
            if word not in list(Action):
                parser.raise_error(f"found {word}, expected {', '.join(Action)}", at)
            label = parser.parse_str_literal()
            return Slot(Action(word), label, parse_index(parser))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.data.action} {quoted(self.data.label)} {self.data.part}")


@irdl_attr_definition
class TaskAttr(Data[Task]):
    """A unit task: `#pipe.task<part 0, [0:4, 8:16], 0 to [2, 3]>`."""

    name = "pipe.task"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Task:
        def interval() -> tuple[int, int]:
            begin = parse_index(parser)
            parser.parse_punctuation(":")
            return begin, parse_index(parser)

        with parser.in_angle_brackets():
            parser.parse_keyword("part")
            part = parse_index(parser)
            parser.parse_punctuation(",")
            where = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, interval)
            parser.parse_punctuation(",")
            sender = parse_index(parser)
            parser.parse_keyword("to")
            return Task(part, tuple(where), sender, parse_indices(parser))

    def print_parameter(self, printer: Printer) -> None:
        where = ", ".join(f"{begin}:{end}" for begin, end in self.data.slice)
        with printer.in_angle_brackets():
            printer.print_string(f"part {self.data.part}, [{where}], {self.data.sender} to {list(self.data.receivers)}")


@irdl_attr_definition
class OrderAttr(Data[TaskOrder]):
    """The order of tasks on ranks that share a NIC, by task number: `#pipe.order<[0, 1]: [2, 0], [4]: [1]>`."""

    name = "pipe.order"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TaskOrder:
        def one() -> TaskList:
            ranks = parse_indices(parser)
            parser.parse_punctuation(":")
            return TaskList(ranks, parse_indices(parser))

        return TaskOrder(tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, one)))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(", ".join(f"{list(row.ranks)}: {list(row.tasks)}" for row in self.data.lists))


@irdl_op_definition
class YieldOp(IRDLOperation):
    """The terminator of a fragment; its operands are the values that the fragment returns."""

    name = "pipe.yield"

    args = var_operand_def(AnyAttr())

    traits = traits_def(IsTerminator())

    assembly_format = "attr-dict ($args^ `:` type($args))?"

    def __init__(self, args: Sequence[SSAValue]):
        super().__init__(operands=[args])


@irdl_op_definition
class FragmentOp(IRDLOperation, GivesShardings):
    """
    A region that runs once for every part of the temporal axis `axis`, and may use any value defined around it.

    `label` is its name in schedules; `stage` is the stage that runs it, absent where all ranks run it.
    """

    name = "pipe.fragment"

    label = prop_def(StringAttr)
    axis = prop_def(StringAttr)
    stage = opt_prop_def(IntegerAttr)
    outs = var_result_def(base(TensorType[Attribute]))
    body = region_def("single_block")

    assembly_format = "$label (`stage` $stage^)? `over` $axis attr-dict `->` type($outs) $body"

    def __init__(self, label: str, axis: str, body: Region, results: Sequence[Attribute], stage: int | None = None):
        super().__init__(
            result_types=[results],
            regions=[body],
            properties={
                "label": StringAttr(label),
                "axis": StringAttr(axis),
                "stage": IntegerAttr(stage, i64) if stage is not None else None,
            },
        )

    @property
    def terminator(self) -> YieldOp:
        """The last op of the body."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last

    @property
    def captured(self) -> tuple[SSAValue, ...]:
        """The values from outside of the fragment that it uses, in the order of their first use."""
        inside = {result for op in self.body.block.ops for result in op.results}
        used = (value for op in self.body.block.ops for value in op.operands if value not in inside)
        return tuple(dict.fromkeys(used))

    def result_sharding(self, index: int) -> Sharding:
        """Return the sharding of the yielded value."""
        return sharding_of(self.terminator.args[index])

    def is_added_at_once(self, index: int) -> bool:
        """
        Return whether a part adds its value of the result at `index` to the sum of the earlier parts, and frees it, as
        soon as the value is computed: only the terminator reads the value, and only ops outside of the loop the result.
        """
        value, users = self.terminator.args[index], [use.operation for use in self.outs[index].uses]
        is_own = isinstance(value, OpResult) and value.owner.parent is self.body.block
        is_read_by_part = any(isinstance(it, TransferOp) or isinstance(it.parent_op(), FragmentOp) for it in users)
        return is_own and value.has_one_use() and not is_read_by_part

    def verify_(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException("a 'pipe.fragment' ends in a 'pipe.yield'")
        if [value.type for value in last.args] != [value.type for value in self.outs]:
            raise VerifyException(f"'pipe.fragment' {self.label} has results of other types than its 'pipe.yield'")


def values_read(op: Operation) -> tuple[SSAValue, ...]:
    """Return the operands of an op, or the captured values of a fragment."""
    return op.captured if isinstance(op, FragmentOp) else tuple(op.operands)


@irdl_op_definition
class TransferOp(IRDLOperation, GivesShardings):
    """
    A value is sent from the mesh of one stage to the mesh of another (a cross-mesh resharding).

    `tasks`, once planned, say which rank sends which slice to which ranks. `order` lists, for each group of ranks that
    share a NIC, the numbers of the tasks that any of these ranks takes part in; each of the ranks starts its tasks in
    that order. Without `order`, the ranks follow the order of `tasks`.
    """

    name = "pipe.transfer"

    T: ClassVar = VarConstraint("T", base(TensorType[Attribute]))

    label = prop_def(StringAttr)
    operand = operand_def(T)
    mesh_ref = prop_def(FlatSymbolRefAttrConstr, prop_name="mesh")
    out_sharding = opt_prop_def(ShardingAttr)
    tasks = opt_prop_def(ArrayAttr[TaskAttr])
    order = opt_prop_def(OrderAttr)
    result = result_def(T)

    traits = traits_def(Pure())

    assembly_format = (
        "$label $operand `to` $mesh (`out_sharding` `=` $out_sharding^)? (`tasks` `=` $tasks^)?"
        " (`order` `=` $order^)? attr-dict `:` type($operand)"
    )

    def __init__(self, label: str, operand: SSAValue, mesh: str, out: ShardingAttr | None = None):
        super().__init__(
            operands=[operand],
            result_types=[operand.type],
            properties={"label": StringAttr(label), "mesh": SymbolRefAttr(mesh), "out_sharding": out},
        )

    @property
    def mesh(self) -> StringAttr:
        """The symbol name of the mesh that receives the value."""
        return self.mesh_ref.root_reference

    @property
    def tasks_in_turn(self) -> list[Task] | None:
        """The tasks in one order that agrees with the order of every rank, or None before they are planned."""
        if self.tasks is None:
            return None
        return in_turn([task.data for task in self.tasks], self.order.data if self.order is not None else None)

    def result_sharding(self, index: int) -> Sharding | None:
        """Return the sharding on the receiving mesh, or None before it is decided."""
        return self.out_sharding.sharding if self.out_sharding is not None else None

    def verify_(self) -> None:
        find_mesh(self, self.mesh.data)
        if self.out_sharding is not None:
            if (found := self.out_sharding.data.mesh) != self.mesh.data:
                raise VerifyException(f"'pipe.transfer' {self.label} is to @{self.mesh.data}, its sharding on @{found}")
            mesh = verify_sharding(self, self.out_sharding, self.result.type)
            temporal = {axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL}
            if spatial := set(self.out_sharding.sharding.partial_axes) - temporal:
                raise VerifyException(
                    f"'pipe.transfer' {self.label} asks for a value that is partial over \"{min(spatial)}\";"
                    " reduce it before it is sent"
                )
        tasks = [task.data for task in self.tasks or ()]
        for task in tasks:
            self._verify_task(task)
        if (repeated := next((task for task, count in Counter(tasks).items() if count > 1), None)) is not None:
            raise VerifyException(f"'pipe.transfer' {self.label} has {repeated} twice")
        if self.order is not None:
            try:
                self.order.data.verify(tasks)
            except ValueError as error:
                raise VerifyException(f"'pipe.transfer' {self.label}: in its order {error}") from None

    def _verify_task(self, task: Task) -> None:
        shape = shape_of(self.operand)
        inside = len(task.slice) == len(shape) and all(
            0 <= begin <= end <= size for (begin, end), size in zip(task.slice, shape, strict=False)
        )
        if not inside or task.sender in task.receivers or len(set(task.receivers)) != len(task.receivers):
            raise VerifyException(f"'pipe.transfer' {self.label} of shape {list(shape)} has the impossible {task}")


PIPE = Dialect("pipe", [FragmentOp, YieldOp, TransferOp], [SlotAttr, TaskAttr, OrderAttr])
