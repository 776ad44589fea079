"""
An interpreter of step functions: all ranks of a mesh in one process, on numbers.

It runs the IR at every stage of the pipeline. An op without a signature runs once, on whole values; one
with a signature runs on every rank, on the parts that the signature demands. Before `insert-resharding` a
value may be spread otherwise than its consumer demands; the interpreter then changes the sharding itself.
Collectives work on what the ranks of a group hold (`local_values`), so wrong ones give wrong numbers.

A temporal axis runs as if its parts were devices beside one another: the mathematics is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ..dialects.compute import ComputeOp, dtype_of, find_mesh, shape_of
from ..dialects.sharding_attrs import ShardingAttr, SignatureAttr
from ..dialects.spmd import CollectiveOp, FreeOp, ReshardOp, StartOp, WaitOp
from ..ir.collectives import find_step
from ..ir.mesh import Axis, Mesh
from ..ir.sharding import Sharding
from .interpreter_errors import InterpreterError, value_text
from .local_calls import working_dtype
from .local_compute import run_op, signature_of
from .local_values import Spread, assemble, convert, split, take_step

SHARDING = "spmd.sharding"


def interpret(
    module: ModuleOp,
    inputs: Sequence[torch.Tensor],
    *,
    function: str | None = None,
    check_replicas: bool = False,
    explicit: bool = False,
    precision: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """
    Run a function of `module` on global inputs and return its global results.

    Args:
        inputs: one tensor per argument, none of which is changed.
        function: its name; needed where the module has several.
        check_replicas: whether ranks that hold the same part of a result must agree.
        explicit: whether every change of sharding must be an op, as after `insert-resharding`.
        precision: a dtype in which all floating-point values are computed instead of their own.

    Raises:
        InterpreterError: an op that cannot be run, a use of a freed value, or copies that do not agree.
    """
    func = find_function(module, function)
    return _Run(_Settings(mesh_of(func), check_replicas, explicit, precision)).function(func, inputs)


def find_function(module: ModuleOp, name: str | None = None) -> FuncOp:
    """The function called `name`, or the only one; VerifyException where there is none such."""
    found = (op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration)
    functions = {func.sym_name.data: func for func in found}
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    if name is None or name not in functions:
        known = ", ".join(f"@{known}" for known in functions) or "none"
        wanted = f"@{name}" if name else "one function, or the name of one"
        raise VerifyException(f"expected {wanted} in the module; its functions with a body: {known}")
    return functions[name]


def mesh_of(func: FuncOp) -> Mesh:
    """
    The mesh that the shardings in `func` speak of, all of its axes spatial; without shardings one device.

    Raises:
        VerifyException: they speak of several meshes, or of one that the module lacks.
    """
    attributes = (a for op in func.walk() for a in (*op.attributes.values(), *op.properties.values()))
    names = sorted({name for attribute in attributes for name in _mesh_names(attribute)})
    if len(names) > 1:
        listed = ", ".join(f"@{name}" for name in names)
        raise VerifyException(f"@{func.sym_name.data} speaks of the meshes {listed}; it can run on one")
    axes = find_mesh(func, names[0]).axes if names else ()
    return Mesh(tuple(Axis(axis.name, axis.size) for axis in axes), names[0] if names else "mesh")


def argument_attributes(func: FuncOp) -> list[dict[str, Attribute]]:
    """The attributes of each argument: its role, and its sharding where it has one."""
    count = len(func.body.block.args)
    return [dict(entry.data) for entry in func.arg_attrs.data] if func.arg_attrs is not None else [{}] * count


def result_attributes(func: FuncOp) -> list[dict[str, Attribute]]:
    """The attributes of each result."""
    count = len(func.function_type.outputs)
    return [dict(entry.data) for entry in func.res_attrs.data] if func.res_attrs is not None else [{}] * count


def _mesh_names(attribute: Attribute) -> Iterator[str]:
    match attribute:
        case ShardingAttr() | SignatureAttr():
            yield attribute.data.mesh
        case ArrayAttr():
            for item in attribute:
                yield from _mesh_names(item)
        case DictionaryAttr():
            for item in attribute.data.values():
                yield from _mesh_names(item)
        case _:
            return


@dataclass(frozen=True)
class _Settings:
    mesh: Mesh
    check_replicas: bool
    explicit: bool
    precision: torch.dtype | None


class _Run:
    """One run: what the values are so far, each until its last use."""

    def __init__(self, settings: _Settings) -> None:
        self.settings, self.mesh = settings, settings.mesh
        self.values: dict[SSAValue, Spread] = {}
        self.started: dict[SSAValue, list[Spread]] = {}
        self.freed: set[SSAValue] = set()

    def function(self, func: FuncOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run `func` to its return."""
        block = func.body.block
        if len(inputs) != len(block.args):
            name, takes = func.sym_name.data, len(block.args)
            raise InterpreterError(func, f"@{name} takes {takes} arguments, found {len(inputs)} inputs")
        for argument, given, role in zip(block.args, inputs, argument_attributes(func), strict=True):
            self.values[argument] = self._input(func, argument, given, role.get(SHARDING))
        last_uses = _last_uses(func)
        for op in block.ops:
            if isinstance(op, ReturnOp):
                return [self._result(op, value) for value in op.arguments]
            try:
                self._run(op)
            except (VerifyException, ValueError) as error:
                raise InterpreterError(op, str(error)) from error
            for value in last_uses.get(op, ()):
                self.values.pop(value, None)
        raise InterpreterError(func, "the function does not end in 'func.return'")

    def _input(self, func: FuncOp, argument: SSAValue, given: torch.Tensor, sharding: Attribute | None) -> Spread:
        shape, dtype = shape_of(argument), working_dtype(dtype_of(argument), self.settings.precision)
        if tuple(given.shape) != shape:
            found = f"found an input of {list(given.shape)}"
            raise InterpreterError(func, f"{value_text(argument)} is of shape {list(shape)}, {found}")
        spread = sharding.sharding if isinstance(sharding, ShardingAttr) else Sharding.replicated(len(shape))
        return split(given.detach().to(dtype), spread, self.mesh)

    def _result(self, op: Operation, value: SSAValue) -> torch.Tensor:
        try:
            return assemble(self._value(op, value), self.mesh, check=self.settings.check_replicas)
        except ValueError as error:
            raise InterpreterError(op, f"{value_text(value)}: {error}") from error

    def _value(self, op: Operation, value: SSAValue) -> Spread:
        if (found := self.values.get(value)) is not None:
            return found
        how = "is used after it was freed" if value in self.freed else "is used before it is defined"
        raise InterpreterError(op, f"{value_text(value)} {how}")

    def _demanded(self, op: Operation, value: SSAValue, sharding: Sharding) -> Spread:
        found = self._value(op, value)
        if self.settings.explicit and found.sharding != sharding:
            raise InterpreterError(
                op, f"{value_text(value)} is spread as {found.sharding}, expected {sharding} by an op"
            )
        return convert(found, sharding, self.mesh)

    def _run(self, op: Operation) -> None:
        match op:
            case ComputeOp():
                wanted = zip(op.args, signature_of(op).operands, strict=True)
                operands = [self._demanded(op, value, sharding) for value, sharding in wanted]
                results = run_op(op, operands, self.mesh, self.settings.precision)
            case ReshardOp():
                results = [convert(self._value(op, op.operand), op.sharding, self.mesh)]
            case CollectiveOp():
                source = self._value(op, op.operand)
                results = [take_step(op.step(source.sharding, self.mesh), source, self.mesh)]
            case StartOp():
                self.started[op.token] = [self._started(op, i) for i in range(len(op.args))]
                return
            case WaitOp():
                results = self.started.pop(op.token, [])
            case FreeOp():
                results = []
                for value in op.args:
                    self._free(op, value)
            case _:
                raise InterpreterError(op, "expected an op of aten, train or spmd, or 'func.return'")
        self.values.update(zip(op.results, results, strict=True))

    def _started(self, op: StartOp, index: int) -> Spread:
        source, target = self._value(op, op.args[index]), op.out_shardings.data[index].sharding
        step = find_step(op.collective, source.sharding, target, self.mesh)
        if step is None:
            raise InterpreterError(op, f"no {op.collective} leads from {source.sharding} to {target}")
        return take_step(step, source, self.mesh)

    def _free(self, op: FreeOp, value: SSAValue) -> None:
        if self.started.pop(value, None) is None:
            self._value(op, value)
            del self.values[value]
        self.freed.add(value)


def _last_uses(func: FuncOp) -> dict[Operation, list[SSAValue]]:
    """The values that nothing needs after each op: its own results too, where nothing uses them."""
    last: dict[SSAValue, Operation] = {}
    for op in func.body.block.ops:
        last.update(dict.fromkeys((*op.results, *op.operands), op))
    uses: dict[Operation, list[SSAValue]] = {}
    for value, op in last.items():
        uses.setdefault(op, []).append(value)
    return uses
