"""Writing of the stages of a pipeline into a step function, given the layers of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, IntegerAttr, StringAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp
from ...dialects.pipe import STAGE, STAGES, TransferOp
from ...dialects.step import BACKWARD, merge_argument_attributes
from ..step.layers import Layers
from ..step.step_view import StepView


def divide(view: StepView, layers: Layers, meshes: Sequence[str], places: Sequence[int]) -> None:
    """
    Give the arguments and ops of a function to stages.

    Args:
        meshes: the names of the stages' meshes.
        places: the index of the stage of each layer.
    """
    _Divider(view, layers, meshes, places).run()


def places_of_layers(bounds: Sequence[int], stages: int) -> list[int]:
    """
    Return the index of the stage of each layer.

    Args:
        bounds: the first layer of each chunk of layers, then the number of layers; chunks go to the stages in turns.
    """
    return [chunk % stages for chunk, (first, end) in enumerate(pairwise(bounds)) for _ in range(first, end)]


class _Divider:
    """A walk over a function in program order that tracks the stages that have each value; used once."""

    def __init__(self, view: StepView, layers: Layers, meshes: Sequence[str], places: Sequence[int]) -> None:
        self.view, self.layers, self.meshes, self.places = view, layers, meshes, places
        self.func: FuncOp = view.func
        self.block: Block = self.func.body.block
        self.stages = range(len(meshes))
        self.at: dict[tuple[SSAValue, int], SSAValue] = {}
        self.last_transfer: dict[SSAValue, Operation] = {}
        self.labels: set[str] = set()
        self.wanted = self._wanted()

    def run(self) -> None:
        """Divide the function."""
        ops = [op for op in self.block.ops if op is not self.view.terminator]
        arguments = list(self.block.args)
        firsts = [self._argument(argument) for argument in arguments]
        merge_argument_attributes(self.func, {index: {STAGE: IntegerAttr(s, i64)} for index, s in enumerate(firsts)})
        for op in ops:
            self._op(op)
        self._results(self.view.terminator)
        self.func.attributes[STAGES] = ArrayAttr([StringAttr(mesh) for mesh in self.meshes])

    def _home(self, value: SSAValue) -> int:
        """Return the stage that produces or stores a value that is not `anywhere`."""
        layer = self.layers.of_value(value)
        return self.places[layer if layer is not None else 0]

    def _wanted(self) -> dict[SSAValue, list[int]]:
        """Return the stages that need each value that every stage can hold."""
        needed: dict[SSAValue, set[int]] = {value: set() for value in self.layers.anywhere}
        everywhere = (train.LEARNING_RATE, train.STEP_COUNT)
        for item in self.view.inputs:
            if item.role in everywhere:
                needed[item.argument].update(self.stages)
        for index, target in self.view.updated.items():
            value, argument = self.view.terminator.arguments[index], self.block.args[target]
            needed.get(value, set[int]()).update(needed.get(argument, {self._home(argument)}))
        for op in reversed(self.view.ops):
            users = [use.operation for result in op.outs for use in result.uses]
            own = {self.places[self.layers.of[op]]} if op in self.layers.of else self._union(op.outs, needed)
            returned = any(isinstance(user, ReturnOp) for user in users)
            if not own and returned:
                own = {len(self.meshes) - 1}
            for value in (*op.args, *op.outs):
                if value in needed:
                    needed[value] |= own
        return {value: sorted(stages) or [0] for value, stages in needed.items()}

    def _union(self, values: Iterable[SSAValue], needed: dict[SSAValue, set[int]]) -> set[int]:
        return set[int]().union(*(needed[value] for value in values))

    def _argument(self, argument: BlockArgument) -> int:
        """Return the stage of an argument, after copying the argument for other stages that need their own."""
        first, *others = self.wanted.get(argument, [self._home(argument)])
        listed = self.func.arg_attrs.data if self.func.arg_attrs is not None else ()
        attributes = dict(listed[argument.index].data) if argument.index < len(listed) else {}
        self.at[argument, first] = argument
        for stage in others:
            copy = self.block.insert_arg(argument.type, len(self.block.args))
            copy.name_hint = _at(argument, stage)
            copy.location = argument.location
            listed = self.func.arg_attrs.data if self.func.arg_attrs is not None else ()
            self.func.arg_attrs = ArrayAttr([*listed, DictionaryAttr({**attributes, STAGE: IntegerAttr(stage, i64)})])
            self._retype()
            self.at[argument, stage] = copy
        return first

    def _retype(self, outputs: Sequence[Attribute] | None = None) -> None:
        current = self.func.function_type.outputs.data
        types = [argument.type for argument in self.block.args]
        self.func.function_type = FunctionType.from_lists(types, list(outputs if outputs is not None else current))

    def _op(self, op: Operation) -> None:
        """Put an op on its stage, and copies on other stages that need their own."""
        anywhere = bool(op.results) and op.results[0] in self.wanted
        stages = self.wanted[op.results[0]] if anywhere else [self.places[self.layers.of.get(op, 0)]]
        operands = list(op.operands)
        for stage in stages:
            here = op if stage == stages[0] else self._copy(op, stage)
            here.attributes[STAGE] = IntegerAttr(stage, i64)
            for index, value in enumerate(operands):
                here.operands[index] = self._value(value, stage, op)
            self.at |= {(original, stage): result for original, result in zip(op.results, here.results, strict=True)}

    def _copy(self, op: Operation, stage: int) -> Operation:
        copy = op.clone()
        copy.location = op.location
        for result, original in zip(copy.results, op.results, strict=True):
            result.name_hint = _at(original, stage)
        self.block.insert_op_after(copy, op)
        return copy

    def _value(self, value: SSAValue, stage: int, user: Operation) -> SSAValue:
        if (value, stage) not in self.at:
            self.at[value, stage] = self._transfer(value, stage, user)
        return self.at[value, stage]

    def _transfer(self, value: SSAValue, stage: int, user: Operation) -> SSAValue:
        source = self.at[value, self.wanted[value][0] if value in self.wanted else self._home(value)]
        name = _at(value, stage)
        label = next(candidate for candidate in _numbered(name) if candidate not in self.labels)
        self.labels.add(label)
        transfer = TransferOp(label, source, self.meshes[stage])
        transfer.result.name_hint = _at(value, stage)
        before = self.last_transfer.get(value, value.owner)
        if isinstance(before, Operation):
            self.block.insert_op_after(transfer, before)
            if isinstance(value, OpResult) and BACKWARD in value.op.attributes:
                transfer.attributes[BACKWARD] = value.op.attributes[BACKWARD]
        else:
            self.block.insert_op_before(transfer, user)
        transfer.location = value.op.location if isinstance(value, OpResult) else user.location
        self.last_transfer[value] = transfer
        return transfer.result

    def _results(self, terminator: ReturnOp) -> None:
        """Return the loss from every stage, and new values of arguments from every stage that has a copy."""
        attributes = [self.view.result_attributes(index) for index in range(len(terminator.arguments))]
        values: list[SSAValue] = []
        more: list[tuple[SSAValue, dict[str, Attribute]]] = []
        for index, (value, roles) in enumerate(zip(terminator.arguments, attributes, strict=True)):
            target = self.view.updated.get(index)
            # The new value of an argument is returned by the stages of the argument.
            stored = self._original(target) if target is not None else value
            stages = (
                list(self.stages) if self.view.is_for_all(index) else (self.wanted.get(stored) or [self._home(stored)])
            )
            first, *others = stages
            values.append(self._value(value, first, terminator))
            for stage in others:
                further = dict(roles)
                if target is not None:
                    argument = self.at[self._original(target), stage]
                    assert isinstance(argument, BlockArgument)
                    further[train.UPDATES] = IntegerAttr(argument.index, i64)
                more.append((self._value(value, stage, terminator), further))
        terminator.operands = [*values, *(value for value, _ in more)]
        if any(attributes):
            self.func.res_attrs = ArrayAttr([DictionaryAttr(a) for a in (*attributes, *(a for _, a in more))])
        self._retype([value.type for value in terminator.operands])

    def _original(self, index: int) -> SSAValue:
        return self.block.args[index]


def _at(value: SSAValue, stage: int) -> str:
    """Return the name of a value on another stage."""
    hint = value.name_hint or ("value" if isinstance(value.owner, ComputeOp) else "argument")
    return f"{hint}.at{stage}"


def _numbered(name: str) -> Iterable[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1
