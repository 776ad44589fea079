"""The pipeline stages of the values and ops of a step function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import VerifyException

from .compute import SIGNATURE
from .kinds import entries_of
from .mesh_ops import find_mesh
from .pipe import STAGE, STAGES, FragmentOp, TransferOp
from .placed import SHARDING, argument_attribute
from .sharding_attrs import ShardingAttr, SignatureAttr
from .spmd import AccumulateOp, FreeOp, ReshardingOp, StartOp, WaitOp


@dataclass(frozen=True)
class Stages:
    """
    The stages of a function, by the names of their meshes; empty for a function that is not a pipeline.

    An op's stage is its attribute, else the stage of the mesh of its shardings, else the stage of the fragment around
    it. A transfer has no stage: it sends a value from the stage of its operand to the stage of its mesh.
    """

    func: FuncOp

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the stages' meshes, in order."""
        entries = entries_of(self.func.attributes.get(STAGES)) or ()
        return tuple(entry.data for entry in entries if isinstance(entry, StringAttr))

    def of_op(self, op: Operation) -> int | None:
        """Return the number of an op's stage, or None for a transfer or an op without a stage."""
        match op:
            case TransferOp():
                return None
            case FragmentOp():
                return op.stage.value.data if op.stage is not None else None
            case FreeOp():
                return self.of_value(op.args[0]) if op.args else None
            case WaitOp():
                return self.of_op(op.start)
            case _:
                stage = _number(op.attributes.get(STAGE))
                return self._around(op) if stage is None else stage

    def of_value(self, value: SSAValue) -> int | None:
        """Return the number of the stage that holds a value, or None."""
        if isinstance(value, BlockArgument):
            return _number(argument_attribute(value, STAGE))
        assert isinstance(value, OpResult)
        if isinstance(value.op, TransferOp):
            return self._by_name.get(value.op.mesh.data)
        return self.of_op(value.op)

    def mesh_of(self, value: SSAValue) -> str | None:
        """Return the name of the mesh of a value, or None if it is unknown."""
        if (stage := self.of_value(value)) is not None:
            return self.names[stage]
        if isinstance(value, BlockArgument):
            attribute = argument_attribute(value, SHARDING)
            return attribute.data.mesh if isinstance(attribute, ShardingAttr) else None
        assert isinstance(value, OpResult)
        return _mesh_name(value.op)

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def _around(self, op: Operation) -> int | None:
        mesh = _mesh_name(op)
        if mesh is not None:
            return self._by_name.get(mesh)
        parent = op.parent_op()
        return self.of_op(parent) if isinstance(parent, FragmentOp) else None

    def verify(self) -> None:
        """Raise VerifyException unless every op other than a transfer uses only values of the op's stage."""
        if not self.names:
            staged = (value for value in self.func.body.block.args if self.of_value(value) is not None)
            if value := next(staged, None):
                name = value.name_hint or value.index
                raise VerifyException(f"argument %{name} has a stage, the function has no {STAGES}")
            return
        if len(set(self.names)) != len(self.names):
            raise VerifyException(f"{STAGES} names a mesh twice: {', '.join(self.names)}")
        for name in self.names:
            find_mesh(self.func, name)
        for argument in self.func.body.block.args:
            self._verify_number(self.of_value(argument), f"argument %{argument.name_hint or argument.index}")
        for op in self.func.walk():
            if op is not self.func and not isinstance(op, TransferOp | ReturnOp):
                self._verify_op(op)

    def _verify_op(self, op: Operation) -> None:
        stage = self.of_op(op)
        self._verify_number(stage, f"'{op.name}'")
        for operand in op.operands:
            if (other := self.of_value(operand)) != stage:
                raise VerifyException(
                    f"'{op.name}' of stage {stage} uses %{operand.name_hint or '?'} of stage {other};"
                    " transfer it with a 'pipe.transfer'"
                )

    def _verify_number(self, stage: int | None, what: str) -> None:
        if stage is None or not 0 <= stage < len(self.names):
            found = "no stage" if stage is None else f"stage {stage}"
            raise VerifyException(f"{what} has {found}, expected one of the {len(self.names)} of {STAGES}")


def transfers(func: FuncOp) -> Iterator[TransferOp]:
    """Return the transfers of a function in program order; a transfer is never nested in a fragment."""
    return (op for op in func.body.block.ops if isinstance(op, TransferOp))


def _number(attribute: Attribute | None) -> int | None:
    return attribute.value.data if isinstance(attribute, IntegerAttr) else None


def _mesh_name(op: Operation) -> str | None:
    """Return the name of the mesh of an op's shardings, or None."""
    match op:
        case ReshardingOp() | AccumulateOp():
            return op.out_sharding.data.mesh
        case TransferOp():
            return op.mesh.data
        case StartOp():
            return op.out_shardings.data[0].data.mesh if op.out_shardings.data else None
        case _:
            attribute = op.attributes.get(SIGNATURE)
            return attribute.data.mesh if isinstance(attribute, ShardingAttr | SignatureAttr) else None
