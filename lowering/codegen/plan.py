"""Write the head of an emitted program: its docstring, and the plan and the transfers for the runtime."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from ...dialects import train
from ...dialects.compute import dtype_of, python_value, shape_of
from ...dialects.pipe import IDLE, TransferOp
from ...dialects.staged import transfers
from ...dialects.step import argument_attributes, result_attributes, sharding_of
from ...ir.mesh import Axis, AxisKind, Mesh
from ...ir.sharding import Sharding, parse_sharding
from ...ir.unit_tasks import Task, in_each_part
from .errors import EmitError
from .layered_entries import layered_entries
from .layout import WIDTH, Doc, Group, Repeated, call, flat, keyword, literal, string, tuple_of
from .python_text import is_name, remark
from .stages import LoweredStage

_ARGUMENT_ROLES = {
    train.PARAM: "param",
    train.STATE: "state",
    train.BUFFER: "buffer",
    train.CONSTANT: "constant",
    train.BATCH: "batch",
    train.LEARNING_RATE: "learning_rate",
    train.STEP_COUNT: "step_count",
    train.SEED: "seed",
}
_NAMED_ROLES = ("param", "buffer", "constant", "batch")
"""The roles of arguments with a name; a learning rate may have one."""

_NAMED_RESULTS = {train.METRIC: "metric", train.GRAD: "grad", train.OUTPUT: "output"}
"""The roles of results with a name; gradients and outputs are returned as shards."""

TIED, VALUE, OPTIMIZER = "train.tied", "train.value", "train.optimizer"


def docstring(func: FuncOp, name: str, meshes: Sequence[Mesh], versions: Mapping[str, str]) -> Iterator[str]:
    """Write the docstring of the program of `func`, which has a stage on each of `meshes`."""
    version = versions.get("shardwright")
    planner = f"shardwright {remark(version)}" if version else "shardwright"
    idle = sum(mesh.device_count for mesh in meshes if mesh.name == IDLE)
    used = [mesh for mesh in meshes if mesh.name != IDLE]
    stages = f"in {len(used)} stages " if len(used) > 1 else ""
    others = f" ({idle} ranks idle)" if idle else ""
    content = "the forward pass for evaluation" if train.FORWARD in func.attributes else "one training step"
    where = " and ".join(map(_mesh_text, used))
    text = f"{remark(name)} {stages}on {where}{others}: {content}, as planned by {planner}."
    ranks = sum(mesh.device_count for mesh in meshes)
    yield '"""'
    yield from textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    if train.FORWARD in func.attributes:
        yield '"""'
        return
    yield ""
    yield f"Run it on {ranks} ranks: torchrun --nproc-per-node {ranks} <this file>"
    yield '"""'


def _mesh_text(mesh: Mesh) -> str:
    """Return the text of a mesh for a docstring; only the names of axes are in double quotes."""
    axes = (f'"{remark(axis.name)}"={axis.size}' for axis in mesh.axes)
    kinds = (" temporal" if axis.kind is AxisKind.TEMPORAL else "" for axis in mesh.axes)
    return f"<[{', '.join(axis + kind for axis, kind in zip(axes, kinds, strict=True))}]>"


def mesh_doc(mesh: Mesh, name: str = "MESH") -> Group:
    """Return `MESH = rt.Mesh.of(dp=2, tp=2)` with the spatial axes of a mesh."""
    return axes_doc(f"{name} = rt.Mesh.of", mesh.spatial)


def axes_doc(function: str, axes: Sequence[Axis]) -> Group:
    """Return `function(dp=2, tp=2)`."""
    names, sizes = [axis.name for axis in axes], [str(axis.size) for axis in axes]
    if all(map(is_name, names)):
        return call(function, map(keyword, names, sizes))
    entries = (f"{flat(string(name))}: {size}" for name, size in zip(names, sizes, strict=True))
    return Group(f"{function}(**{{", tuple(entries), "})", fill=True)


class PlanFacts(TypedDict):
    """The entries that all plans of a program share."""

    name: str
    step_spec: str | None
    versions: Mapping[str, str]


def plan_doc(
    stage: LoweredStage,
    groups: Sequence[tuple[str, ...]],
    *,
    name: str,
    step_spec: str | None,
    versions: Mapping[str, str],
    more: Mapping[str, Doc],
) -> Group:
    """
    Return `PLAN = rt.Plan(...)`.

    Args:
        more: further entries.
    """
    optimizer = stage.func.attributes.get(OPTIMIZER)
    settings = python_value(optimizer) if optimizer is not None else None
    entries: dict[str, Doc] = {
        "name": literal(name),
        "mesh": f"MESH{stage.suffix}",
        "step_spec": literal(step_spec),
        "versions": literal(versions),
        "inputs": tuple_of(layered_entries("rt.Value", list(_values(stage))), fill=False),
        "outputs": tuple_of(layered_entries("rt.Result", list(_results(stage))), fill=False),
        "groups": literal(groups),
        "optimizer": literal(settings),
        **more,
    }
    return call(f"PLAN{stage.suffix} = rt.Plan", map(keyword, entries, entries.values()), fill=False)


def _values(stage: LoweredStage) -> Iterator[Mapping[str, object]]:
    func, roles = stage.func, argument_attributes(stage.func)
    for argument in stage.arguments:
        attributes = roles[argument.index]
        role, named = role_of(attributes)
        if not role:
            name = argument.name_hint or argument.index
            raise EmitError(func, f"argument %{name} has no role (train.param, train.batch, ...)")
        entries: dict[str, object] = {"role": role, **named, "shape": shape_of(argument)}
        entries |= {"dtype": dtype_of(argument), "sharding": spread_text(func, sharding_of(argument))}
        if TIED in attributes:
            entries["tied"] = tuple(python_value(attributes[TIED]))
        if train.TRANSIENT in attributes:
            entries["persistent"] = False
        if (value := attributes.get(VALUE)) is not None:
            entries["value"] = _numbers(value)
        if (value := attributes.get(train.INITIAL)) is not None:
            entries["value"] = python_value(value)
        yield entries


def spread_text(func: FuncOp, spread: Sharding) -> str:
    """Return a sharding as text for the runtime; raise EmitError if the name of an axis prevents a round trip."""
    text = str(spread)
    try:
        parsed = parse_sharding(text)
    except ValueError:
        parsed = None
    if parsed != spread:
        problem = f"a value is spread as {text[:200]!r}, which is read as something else because of the name of an axis"
        raise EmitError(func, f"{problem}; call axes by letters, digits and _")
    return text


def role_of(attributes: Mapping[str, Attribute]) -> tuple[str, Mapping[str, str]]:
    """
    Return the role of an argument, empty without one, and the entries that name it.

    These are the name of the argument, or of the parameter of a state, and the name of the state.
    """
    for key, role in _ARGUMENT_ROLES.items():
        if (value := attributes.get(key)) is not None:
            if role == "state":
                return role, dict(zip(("name", "state"), python_value(value), strict=True))
            named = value != UnitAttr() if role == "learning_rate" else role in _NAMED_ROLES
            return role, {"name": str(python_value(value))} if named else {}
    return "", {}


def _results(stage: LoweredStage) -> Iterator[Mapping[str, object]]:
    func, roles, inputs = stage.func, result_attributes(stage.func), argument_attributes(stage.func)
    places = {value: place for place, value in enumerate(stage.arguments)}
    for index, result in zip(stage.results, stage.returned, strict=True):
        attributes = roles[index]
        spread = {"shape": shape_of(result), "dtype": dtype_of(result)}
        spread["sharding"] = spread_text(func, sharding_of(result))
        if train.LOSS in attributes:
            _check_result(func, result, Sharding.replicated(0), "is the loss")
            yield {"role": "loss", "dtype": dtype_of(result)}
        elif train.UPDATES in attributes:
            argument = func.body.block.args[python_value(attributes[train.UPDATES])]
            why = f"replaces argument %{argument.name_hint}"
            _check_result(func, result, sharding_of(argument), why)
            if argument not in places:
                raise EmitError(
                    func, f"result %{result.name_hint} {why} of another stage, expected a result of that stage"
                )
            yield {"role": role_of(inputs[argument.index])[0], "updates": places[argument]}
        elif (role := next((each for each in _NAMED_RESULTS if each in attributes), None)) is not None:
            if role == train.METRIC:
                _check_result(func, result, Sharding.replicated(len(shape_of(result))), "is a metric")
            yield {"role": _NAMED_RESULTS[role], "name": python_value(attributes[role]), **spread}
        else:
            raise EmitError(func, f"result %{result.name_hint} has no role (train.loss, train.updates, ...)")


def _check_result(func: FuncOp, result: SSAValue, expected: Sharding, why: str) -> None:
    if (actual := sharding_of(result)) != expected:
        raise EmitError(
            func,
            f"result %{result.name_hint} {why} and is spread as {actual}, expected {expected}; run insert-resharding",
        )


def _numbers(value: Attribute) -> object:
    """Return the elements of a constant in row-major order."""
    if not isinstance(value, DenseIntOrFPElementsAttr):
        return python_value(value)
    element = value.get_element_type()
    boolean = isinstance(element, IntegerType) and element.width.data == 1
    numbers = tuple(bool(item) if boolean else item for item in value.get_values())
    return Repeated(numbers[0], len(numbers)) if len(numbers) > 1 and value.is_splat() else numbers


def _tasks_doc(tasks: Sequence[Task]) -> Doc:
    """Write the unit tasks of a transfer, or only the tasks of part 0 if just the slices move from part to part."""
    parts = 1 + max((task.part for task in tasks), default=0)
    if parts == 1:
        return _task_docs(tasks)
    first = tasks[: len(tasks) // parts]
    shift = [there[0] - here[0] for here, there in zip(tasks[0].slice, tasks[len(first)].slice, strict=True)]
    if in_each_part(parts, shift, first) != tuple(tasks):
        return _task_docs(tasks)
    return call("rt.in_each_part", [literal(parts), literal(shift), _task_docs(first)])


def _task_docs(tasks: Iterable[Task]) -> Doc:
    return tuple_of(
        call("rt.Task", map(literal, (task.part, task.slice, task.sender, task.receivers))) for task in tasks
    )


def transfer_docs(stages: Sequence[LoweredStage]) -> Iterator[Doc]:
    """Return `rt.Transfer(...)` for each transfer of a step, in order."""
    func = stages[0].func

    def holders(op: TransferOp, value: SSAValue) -> Doc:
        if (stage := next((stage for stage in stages if stage.has(value)), None)) is None:
            raise EmitError(op, f"is from or to @{op.mesh.data}, which is not a stage of the function")
        sharding = sharding_of(value)
        mesh = f"{'MESH' if stage.mesh.axes == stage.mesh.spatial else 'TIMED'}{stage.suffix}"
        text = [] if sharding.is_replicated else [literal(spread_text(func, sharding))]
        return call("rt.Holders", [mesh, literal(stage.ranks), *text])

    for op in transfers(func):
        if (tasks := op.tasks_in_turn) is None:
            raise EmitError(op, "has no unit tasks yet; run plan-transfers")
        entries: dict[str, Doc] = {
            "label": literal(op.label.data),
            "shape": literal(shape_of(op.operand)),
            "dtype": literal(dtype_of(op.operand)),
            "source": holders(op, op.operand),
            "target": holders(op, op.result),
            "tasks": _tasks_doc(tasks),
        }
        yield call("rt.Transfer", map(keyword, entries, entries.values()))
