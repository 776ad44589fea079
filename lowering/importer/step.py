"""
Import a captured step (an fx graph of forward and backward) as one IR function that includes the update.

The function is `@step(parameters, states, buffers, batch, constants, seed, step count, learning rate) -> (loss, new
parameters, new states, new buffers, new step count [, gradients])`; the roles are attributes of its arguments and
results (`dialects.train`). For a forward pass alone it is `@step(parameters, buffers, batch, constants, seed) -> (loss,
metrics)` or `-> (outputs)`, with the used inputs only. The location of an op is its layer and line in the model; a
backward op has the location of the forward op that it differentiates, and the mark `train.backward`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch.fx import Node
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    TensorType,
    UnitAttr,
    UnknownLoc,
    i64,
)
from xdsl.dialects.builtin import IntegerAttr as Integer
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue

from ...dialects import train
from ...dialects.compute import ABSENT, plain_attribute
from ...dialects.step import NO_ROWS
from ..calls.arguments import attribute_of, constant_attribute, element_type
from ..capture.captured import CapturedStep, CaptureError, OptimizerSpec, StateSpec, StepInput, StepOutput
from ..capture.refusals import is_text
from .nodes import NodeImporter, value_name
from .unknown_ops import UnknownOps
from .updates import UpdateImporter

_ROLE_NAMES = {
    "param": train.PARAM,
    "buffer": train.BUFFER,
    "constant": train.CONSTANT,
    "batch": train.BATCH,
    "seed": train.SEED,
}


def import_step(
    step: CapturedStep,
    *,
    batch: Mapping[str, object] | None = None,
    gradients: bool = False,
    name: str = "step",
    probe: bool = True,
    no_rows: Collection[str] = (),
) -> ModuleOp:
    """
    Convert a captured step to IR with global shapes and no decisions.

    Args:
        batch: the example batch by item name, which gives integer arguments their range for random inputs.
        gradients: whether to append the gradients to the results of the function.
        probe: whether to infer rules by running an op, for ops that the table lacks (`probe`).
        no_rows: the batch items whose first dim does not count the rows of the batch.

    Raises:
        CaptureError: the IR cannot represent a value of the graph; the message names node, layer and line.
    """
    return _Importer(step, batch or {}, probe, no_rows).run(name, gradients)


class _Importer:
    """The import of one step: the block of the function, and the values of nodes."""

    def __init__(self, step: CapturedStep, batch: Mapping[str, object], probe: bool, no_rows: Collection[str]) -> None:
        self.step, self.batch, self.no_rows = step, batch, no_rows
        self.block = Block()
        self.rules = UnknownOps(probe)
        self.nodes = NodeImporter(self.block, self.rules)
        self.roles: list[dict[str, Attribute]] = []

    def run(self, name: str, gradients: bool) -> ModuleOp:
        for named in (*self.step.inputs, *self.step.outputs):
            if not is_text(named.name):
                problem = f"the {named.role} {named.name!r} has a name that UTF-8 cannot write"
                raise CaptureError(f"{problem}, so a plan cannot contain it; rename it")
        placeholders = [node for node in self.step.graph.nodes if node.op == "placeholder"]
        arguments = dict(zip(self.step.inputs, placeholders, strict=True)) if placeholders else {}
        grads = {o.name for o in self.step.outputs if o.role == "grad"}
        states = self._arguments(arguments, grads)
        for node in self.step.graph.nodes:
            if node.op == "call_function":
                self.nodes.add(node)
            elif node.op not in ("placeholder", "output"):
                raise CaptureError(f"node '{node.name}' of the captured graph is a {node.op}, which cannot be imported")
        results, roles = self._updates(arguments, states, gradients)
        self.rules.warn()
        self.block.add_op(ReturnOp(*results))
        types = ([a.type for a in self.block.args], [r.type for r in results])
        func = FuncOp(
            name,
            types,
            Region(self.block),
            arg_attrs=ArrayAttr([DictionaryAttr(role) for role in self.roles]),
            res_attrs=ArrayAttr([DictionaryAttr(role) for role in roles]),
        )
        if self.step.optimizer is None:
            func.attributes[train.FORWARD] = UnitAttr()
        else:
            func.attributes["train.optimizer"] = _optimizer_attribute(self.step.optimizer)
        return ModuleOp([func])

    def _argument(self, hint: str, type: Attribute, role: dict[str, Attribute]) -> SSAValue:
        value = self.block.insert_arg(type, len(self.block.args))
        value.name_hint = value_name(hint)
        self.roles.append(role)
        return value

    def _arguments(self, inputs: Mapping[StepInput, Node], grads: set[str]) -> dict[tuple[str, str], SSAValue]:
        """Create the function's arguments; return optimizer states, count and rates by (parameter, state)."""
        states: dict[tuple[str, str], SSAValue] = {}
        spec = self.step.optimizer
        for given, node in inputs.items():
            type = TensorType(element_type(given.dtype), given.shape)
            name = UnitAttr() if given.role == "seed" else StringAttr(given.name)
            role: dict[str, Attribute] = {_ROLE_NAMES[given.role]: name}
            if given.aliases:
                role["train.tied"] = ArrayAttr([StringAttr(alias) for alias in given.aliases])
            if not given.persistent:
                role[train.TRANSIENT] = UnitAttr()
            if given.value is not None:
                role["train.value"] = constant_attribute(given.value, type)
            if given.role == "batch" and (limits := _range(self.batch.get(given.name))) is not None:
                role["train.range"] = ArrayAttr([Integer(limit, i64) for limit in limits])
            if given.role == "batch" and given.name in self.no_rows:
                role[NO_ROWS] = UnitAttr()
            hint = f"batch_{given.name}" if given.role == "batch" else given.name
            self.nodes.values[node] = self._argument(hint, type, role)
            if spec is not None and given.role == "param" and given.name in grads:
                for state in spec.states_of(given):
                    states[given.name, state.name] = self._state(given.name, state)
        if spec is None:
            return states
        count, rate = (TensorType(element_type(dtype), []) for dtype in (torch.float32, torch.float64))
        states["", "step"] = self._argument("step_count", count, {train.STEP_COUNT: UnitAttr()})
        # A learning rate is a Python number; float32 would add an error of 1e-8 in a float64 model.
        one = len(spec.groups) == 1
        for number in range(len(spec.groups)):
            hint, group = ("lr", UnitAttr()) if one else (f"lr.{number}", Integer(number, i64))
            states["", f"lr.{number}"] = self._argument(hint, rate, {train.LEARNING_RATE: group})
        return states

    def _state(self, parameter: str, state: StateSpec) -> SSAValue:
        role: dict[str, Attribute] = {train.STATE: ArrayAttr([StringAttr(parameter), StringAttr(state.name)])}
        if state.initial:
            role[train.INITIAL] = attribute_of(state.initial)
        return self._argument(f"{parameter}.{state.name}", TensorType(element_type(state.dtype), state.shape), role)

    def _updates(
        self, inputs: Mapping[StepInput, Node], states: Mapping[tuple[str, str], SSAValue], gradients: bool
    ) -> tuple[list[SSAValue], list[dict[str, Attribute]]]:
        """Add the optimizer's ops and collect the function's results with their roles."""
        output = next(node for node in self.step.graph.nodes if node.op == "output")
        finals = dict(zip(self.step.outputs, (self.nodes.operand(n) for n in output.args[0]), strict=True))
        params = {given.name: given for given in inputs if given.role == "param"}
        updates = UpdateImporter(self.block, self.rules)
        buffers = {given.name: self.nodes.operand(node) for given, node in inputs.items() if given.role == "buffer"}
        results: list[SSAValue] = []
        roles: list[dict[str, Attribute]] = []

        def add(value: SSAValue, role: dict[str, Attribute]) -> None:
            results.append(value)
            roles.append(role)

        spec = self.step.optimizer
        if spec is None:
            for out, value in finals.items():
                add(value, _forward_role(out))
            return results, roles
        count = train.IncrementOp([states["", "step"]], [states["", "step"].type], {})
        self.block.add_op(count)
        count.results[0].name_hint = "step_count.new"
        for out, value in finals.items():
            if out.role == "loss":
                add(value, {train.LOSS: UnitAttr()})
            elif out.role == "metric":
                add(value, {train.METRIC: StringAttr(out.name)})
            elif out.role == "buffer":
                add(value, _updates(buffers[out.name]))
            else:
                given = params[out.name]
                old = [self.nodes.operand(inputs[given])]
                old += [states[out.name, state.name] for state in spec.states_of(given)]
                rate = states["", f"lr.{spec.members.get(out.name, 0)}"]
                if (captured := spec.updates.get(out.name)) is not None:
                    new = updates.add(out.name, captured, old, value, states["", "step"], rate)
                else:
                    new = self._update(spec, out.name, old, value, count.results[0], rate).results
                for before, after in zip(old, new, strict=True):
                    after.name_hint = value_name(f"{before.name_hint}.new")
                    add(after, _updates(before))
        add(count.results[0], _updates(states["", "step"]))
        for out, value in finals.items():
            if gradients and out.role == "grad":
                add(value, {train.GRAD: StringAttr(out.name)})
        return results, roles

    def _update(
        self, spec: OptimizerSpec, name: str, old: list[SSAValue], grad: SSAValue, count: SSAValue, lr: SSAValue
    ) -> train.TrainOp:
        group = spec.group_of(name)
        attributes = {key: attribute_of(value) for key, value in group.hyper.items()}
        if spec.kind == "sgd" and not group.states:
            attributes[ABSENT] = ArrayAttr([StringAttr("momentum_buffer")])
        update = train.FUSED[spec.kind]([old[0], grad, *old[1:], count, lr], [value.type for value in old], attributes)
        update.location = NameLoc(StringAttr(name.rpartition(".")[0]), UnknownLoc())
        self.block.add_op(update)
        return update


def _forward_role(output: StepOutput) -> dict[str, Attribute]:
    if output.role == "loss":
        return {train.LOSS: UnitAttr()}
    return {{"metric": train.METRIC, "output": train.OUTPUT}[output.role]: StringAttr(output.name)}


def _updates(argument: SSAValue) -> dict[str, Attribute]:
    assert isinstance(argument, BlockArgument)
    return {train.UPDATES: Integer(argument.index, i64)}


def _optimizer_attribute(spec: OptimizerSpec) -> DictionaryAttr:
    """Return the optimizer's kind with the settings of its group, or with all groups and their parameters."""
    groups = [{"lr": group.lr, **group.hyper} for group in spec.groups]
    members = [[name for name, group in spec.members.items() if group == number] for number in range(len(groups))]
    settings = groups[0] if len(groups) == 1 else {"groups": groups, "members": members}
    attribute = plain_attribute({"kind": spec.kind, **settings})
    assert isinstance(attribute, DictionaryAttr)
    return attribute


def _range(item: object) -> tuple[int, int] | None:
    if (
        not isinstance(item, torch.Tensor)
        or item.dtype.is_floating_point
        or item.dtype.is_complex
        or item.dtype == torch.bool
    ):
        return None
    if not item.numel() or item.is_meta:
        return None
    return int(item.min()), int(item.max()) + 1
