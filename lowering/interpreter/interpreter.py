"""
An interpreter of step functions, which simulates all ranks of a mesh in one process and computes real numbers.

It runs the IR after every pass of the pipeline. An op without a signature runs once, on full values; an op with a
signature runs on every rank, on the shards that the signature requires. Before `insert-resharding`, the sharding of a
value may differ from its consumer's requirement; the interpreter then reshards the value itself. Collectives use only
the shards of the ranks in a group (`local_values`), so a wrong collective gives wrong numbers.

Every value is on the mesh that its sharding refers to; values without a sharding are on a mesh of one device. The
interpreter treats the parts of a temporal axis as devices, which gives the same results. A fragment therefore runs once
for all parts, and an op at one part of an unrolled axis runs on the devices of that part. If a step has a schedule,
`stage_order` first checks the order of the stages without numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.compute import SIGNATURE, ComputeOp, dtype_of, shape_of
from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import SCHEDULE, FragmentOp, TransferOp, YieldOp
from ...dialects.placed import parts_of
from ...dialects.sharding_attrs import ShardingAttr, SignatureAttr
from ...dialects.spmd import AccumulateOp, CollectiveOp, FreeOp, ReshardOp, StartOp, WaitOp
from ...dialects.step import SHARDING, argument_attributes
from ...ir.collectives import find_step
from ...ir.mesh import Mesh
from ...ir.sharding import Sharding
from ...ir.unit_tasks import Grid
from ..calls.local_calls import working_dtype
from .errors import InterpreterError, value_text
from .local_compute import run_op, signature_of
from .local_values import Spread, accumulate, assemble, convert, filled, masked, split, take_step
from .stage_order import check_stage_order
from .transfers import deliver


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
        inputs: one tensor per argument; inputs are not modified.
        function: name of the function, required if the module has several.
        check_replicas: whether to check that ranks with the same shard of a result agree.
        explicit: whether every resharding must be an op, as after `insert-resharding`.
        precision: dtype to compute all floating-point values in, by default their own dtypes.

    Raises:
        InterpreterError: an op cannot be run, a freed value is used, or copies disagree.
    """
    func = find_function(module, function)
    if SCHEDULE in func.attributes:
        check_stage_order(func)
    grids = {op.sym_name.data: Grid.of(op.mesh, op.ranks) for op in module.ops if isinstance(op, MeshOp)}
    return _Interpretation(_Settings(grids, check_replicas, explicit, precision)).function(func, inputs)


def find_function(module: ModuleOp, name: str | None = None) -> FuncOp:
    """Return the function `name`, or the only function; raise VerifyException if it does not exist."""
    defined = (op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration)
    functions = {func.sym_name.data: func for func in defined}
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    if name is None or name not in functions:
        names = ", ".join(f"@{names}" for names in functions) or "none"
        expected = f"@{name}" if name else "one function, or the name of one"
        raise VerifyException(f"expected {expected} in the module; its functions with a body: {names}")
    return functions[name]


_ONE = Mesh(())
"""The mesh of values without a sharding: one device."""


@dataclass(frozen=True)
class _Settings:
    grids: Mapping[str, Grid]
    check_replicas: bool
    explicit: bool
    precision: torch.dtype | None


class _Interpretation:
    """The state of one run: the current values, each kept until its last use."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.values: dict[SSAValue, Spread] = {}
        self.started: dict[SSAValue, list[Spread]] = {}
        self.freed: set[SSAValue] = set()

    def function(self, func: FuncOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run `func` and return its results."""
        block = func.body.block
        if len(inputs) != len(block.args):
            name, takes = func.sym_name.data, len(block.args)
            raise InterpreterError(func, f"@{name} takes {takes} arguments, found {len(inputs)} inputs")
        for argument, given, role in zip(block.args, inputs, argument_attributes(func), strict=True):
            self.values[argument] = self._input(func, argument, given, role.get(SHARDING))
        last = self._block(block)
        if not isinstance(last, ReturnOp):
            raise InterpreterError(func, "the function does not end in 'func.return'")
        return [self._result(last, value) for value in last.arguments]

    def _block(self, block: Block) -> Operation | None:
        """Run all ops except the last, and return the last op."""
        # An unused result of an op has its last use there.
        last: dict[SSAValue, Operation] = {argument: op for argument in block.args for op in (block.first_op,) if op}
        for op in block.ops:
            inside = {value for inner in op.walk() for value in inner.operands}
            last.update(dict.fromkeys((*op.results, *(value for value in inside if _is_of(value, block))), op))
        last_uses: dict[Operation, list[SSAValue]] = {}
        for value, op in last.items():
            last_uses.setdefault(op, []).append(value)
        for op in block.ops:
            if op is block.last_op:
                return op
            try:
                self._run(op)
            except (VerifyException, ValueError) as error:
                raise InterpreterError(op, str(error)) from error
            for value in last_uses.get(op, ()):
                self.values.pop(value, None)
        return None

    def _mesh(self, op: Operation, attribute: Attribute | None) -> Mesh:
        """Return the mesh of a sharding or signature, with devices on all axes."""
        if not isinstance(attribute, ShardingAttr | SignatureAttr):
            return _ONE
        if (grid := self.settings.grids.get(attribute.data.mesh)) is None:
            names = ", ".join(f"@{name}" for name in self.settings.grids) or "none"
            raise InterpreterError(op, f"there is no mesh @{attribute.data.mesh}; the module's meshes: {names}")
        return grid.mesh

    def _input(self, func: FuncOp, argument: SSAValue, given: torch.Tensor, sharding: Attribute | None) -> Spread:
        shape, dtype = shape_of(argument), working_dtype(dtype_of(argument), self.settings.precision)
        if tuple(given.shape) != shape:
            actual = f"found an input of {list(given.shape)}"
            raise InterpreterError(func, f"{value_text(argument)} is of shape {list(shape)}, {actual}")
        spread = sharding.sharding if isinstance(sharding, ShardingAttr) else Sharding.replicated(len(shape))
        return split(given.detach().to(dtype), spread, self._mesh(func, sharding))

    def _result(self, op: Operation, value: SSAValue) -> torch.Tensor:
        try:
            return assemble(self._value(op, value), check=self.settings.check_replicas)
        except ValueError as error:
            raise InterpreterError(op, f"{value_text(value)}: {error}") from error

    def _value(self, op: Operation, value: SSAValue) -> Spread:
        if (spread := self.values.get(value)) is not None:
            return spread
        how = "is used after it was freed" if value in self.freed else "is used before it is defined"
        raise InterpreterError(op, f"{value_text(value)} {how}")

    def _on(self, op: Operation, value: SSAValue, mesh: Mesh) -> Spread:
        """Return a value that is on `mesh`, or move it there from the mesh of one device."""
        spread = self._value(op, value)
        if spread.mesh in (mesh, _ONE):
            return convert(spread, spread.sharding, mesh)
        raise InterpreterError(op, f"{value_text(value)} is on mesh {spread.mesh}, expected on {mesh} by a transfer")

    def _demanded(self, op: Operation, value: SSAValue, sharding: Sharding, mesh: Mesh) -> Spread:
        spread = self._value(op, value)
        if spread.sharding == sharding and spread.mesh == mesh:
            return spread
        if self.settings.explicit and not (spread.mesh is _ONE and sharding.is_replicated):
            where = "" if spread.mesh in (mesh, _ONE) else f" on {spread.mesh}"
            raise InterpreterError(
                op, f"{value_text(value)} is spread as {spread.sharding}{where}, expected {sharding} by an op"
            )
        return convert(spread, sharding, mesh)

    def _run(self, op: Operation) -> None:
        at = parts_of(op)
        if isinstance(op, StartOp):
            self.started[op.token] = [masked(self._started(op, index), at) for index in range(len(op.args))]
            return
        results = (masked(result, at) for result in self._results(op))
        self.values.update(zip(op.results, results, strict=True))

    def _results(self, op: Operation) -> list[Spread]:
        match op:
            case ComputeOp():
                mesh = self._mesh(op, op.attributes.get(SIGNATURE))
                pairs = zip(op.args, signature_of(op).operands, strict=True)
                operands = [self._demanded(op, value, sharding, mesh) for value, sharding in pairs]
                return run_op(op, operands, mesh, self.settings.precision)
            case ReshardOp():
                return [convert(self._value(op, op.operand), op.sharding, self._mesh(op, op.out_sharding))]
            case CollectiveOp():
                source = self._on(op, op.operand, self._mesh(op, op.out_sharding))
                return [take_step(op.step(source.sharding, source.mesh), source)]
            case WaitOp():
                return self.started.pop(op.token, [])
            case AccumulateOp():
                total, part = self._value(op, op.total), self._value(op, op.part)
                return [accumulate(total, part, op.out_sharding.sharding)]
            case FragmentOp():
                last = self._block(op.body.block)
                if not isinstance(last, YieldOp):
                    raise InterpreterError(op, "does not end in 'pipe.yield'")
                return [self._value(last, value) for value in last.args]
            case TransferOp():
                return [self._transfer(op)]
            case FreeOp():
                for value in op.args:
                    if self.started.pop(value, None) is None:
                        self._value(op, value)
                        del self.values[value]
                    self.freed.add(value)
                return []
            case _:
                raise InterpreterError(op, "expected an op of aten, pipe, spmd or train, or 'func.return'")

    def _started(self, op: StartOp, index: int) -> Spread:
        target = op.out_shardings.data[index]
        source = self._on(op, op.args[index], self._mesh(op, target))
        step = find_step(op.collective, source.sharding, target.sharding, source.mesh)
        if step is None:
            raise InterpreterError(op, f"no {op.collective} leads from {source.sharding} to {target.sharding}")
        return take_step(step, source)

    def _transfer(self, op: TransferOp) -> Spread:
        source, wanted = self._value(op, op.operand), op.out_sharding
        if wanted is None:
            return source if source.mesh is _ONE else convert(source, Sharding.replicated(len(source.shape)), _ONE)
        target, at = self._mesh(op, wanted), parts_of(op)
        if op.tasks is None:
            return convert(filled(source) if at else source, wanted.sharding, target)
        grids = {grid.mesh: grid for grid in self.settings.grids.values()}
        tasks = [task.data for task in op.tasks]
        return deliver(tasks, source, grids[source.mesh], wanted.sharding, grids[target], at)


def _is_of(value: SSAValue, block: Block) -> bool:
    owner = value.owner
    return (owner if isinstance(owner, Block) else owner.parent) is block
