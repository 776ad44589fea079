"""The constraints of a search, and their form in the IR (`spmd.pin`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from ...dialects.compute import ComputeOp, shape_of
from ...dialects.kinds import entries_of
from ...dialects.pins import PIN, PINS, OpPinAttr, PinEntryAttr, ValuePinAttr
from ...dialects.pipe import TransferOp
from ...dialects.step import argument_attribute, merge_argument_attributes
from ...ir.pins import Copy, OpPin, Pin, ShardingLimit, SignatureLimit, ValuePin
from ..errors import fail
from ..step.step_view import StepView, step_functions, value_label

_Key = TypeVar("_Key")

_FREE, _ANY = ShardingLimit(), SignatureLimit()


@dataclass
class Constraints:
    """
    The limits on the values and ops of one step; any others are free.

    Args:
        arguments: limits on the home of an argument, by its index.
        arrivals: limits on the sharding of a value that arrives from another stage.
        copies: limits on the working copy of a value.
        ops: limits on the signature of an op.
        regathered: values whose working copy is gathered again for backward.
        pins: the pins; `by` of a limit holds indices into them.
    """

    arguments: dict[int, ShardingLimit] = field(default_factory=dict[int, ShardingLimit])
    arrivals: dict[SSAValue, ShardingLimit] = field(default_factory=dict[SSAValue, ShardingLimit])
    copies: dict[SSAValue, ShardingLimit] = field(default_factory=dict[SSAValue, ShardingLimit])
    ops: dict[ComputeOp, SignatureLimit] = field(default_factory=dict[ComputeOp, SignatureLimit])
    regathered: set[SSAValue] = field(default_factory=set[SSAValue])
    pins: tuple[Pin, ...] = ()

    def of_input(self, value: SSAValue) -> ShardingLimit:
        """Return the limit on an argument's home, or on the sharding of a value from another stage."""
        if isinstance(value, BlockArgument):
            return self.arguments.get(value.index, _FREE)
        return self.arrivals.get(value, _FREE)

    def of_copy(self, value: SSAValue) -> ShardingLimit | None:
        """Return the limit on the working copy of a value, if it has one."""
        return self.copies.get(value)

    def of_op(self, op: ComputeOp) -> SignatureLimit | None:
        """Return the limit on the signature of an op, if it has one."""
        return self.ops.get(op)

    def pinned_by(self, subject: ComputeOp | SSAValue) -> tuple[int, ...]:
        """Return the indices of the pins that limit an op, or a value and its working copy."""
        if isinstance(subject, ComputeOp):
            return self.ops.get(subject, _ANY).by
        return (*self.of_input(subject).by, *self.copies.get(subject, _FREE).by)

    def and_also(self, other: Constraints) -> Constraints:
        """Return constraints that satisfy both; full shardings win over placements on single axes."""
        return Constraints(
            _united(self.arguments, other.arguments),
            _united(self.arrivals, other.arrivals),
            _united(self.copies, other.copies),
            {op: self.ops.get(op, _ANY).and_also(other.ops.get(op, _ANY)) for op in (self.ops | other.ops)},
            self.regathered | other.regathered,
            max(self.pins, other.pins, key=len),
        )

    def refuse_op(self, op: ComputeOp) -> NoReturn:
        """Raise the error for an op that has no allowed signature."""
        fail(op, f"{self._leave(self.ops.get(op, _ANY).by)} no signature for it; its rule is {op.rule()}")

    def refuse_input(self, argument: SSAValue) -> NoReturn:
        """Raise the error for an argument, or a value from another stage, that has no allowed sharding."""
        limit, owner = self.of_input(argument), argument.owner
        func = owner.parent_op() if isinstance(owner, Block) else owner
        assert func is not None
        why = f": {limit.sharding} is not one of its shardings, which list axes in the mesh's order"
        fail(
            func,
            f"{self._leave(limit.by)} no sharding for {value_label(argument)} of shape {list(shape_of(argument))}"
            + (why if limit.sharding else ""),
        )

    def _leave(self, by: Sequence[int]) -> str:
        """Return the subject and verb of a message about the pins of a limit."""
        return f"{self.named(by)} leaves" if len(by) == 1 else f"{self.named(by)} leave"

    def named(self, by: Sequence[int]) -> str:
        """Return the names of the pins of a limit, for messages."""
        names = dict.fromkeys(str(self.pins[index]) for index in by if index < len(self.pins))
        return " and ".join(names) or "the pins in the IR"


def _united(one: dict[_Key, ShardingLimit], other: dict[_Key, ShardingLimit]) -> dict[_Key, ShardingLimit]:
    return {key: one.get(key, _FREE).and_also(other.get(key, _FREE)) for key in (one | other)}


def pin_entries(func: FuncOp) -> tuple[Pin, ...]:
    """Return the entries of pin files that were added to a function."""
    entries = entries_of(func.attributes.get(PINS)) or ()
    return tuple(entry.data for entry in entries if isinstance(entry, PinEntryAttr))


def is_pinned(module: ModuleOp) -> bool:
    """Whether anything in a module is pinned."""
    return any(PIN in attributes or PINS in attributes for op in module.walk() for attributes in _attributes(op))


def pins_places(module: ModuleOp) -> bool:
    """Return whether pins refer to axes or to single values; a preset over all axes refers to neither."""
    entries = [pin for func in step_functions(module) for pin in pin_entries(func)]
    if any(pin.sharding is not None or pin.axes is not None for pin in entries):
        return True
    pinned = (attributes.get(PIN) for op in module.walk() for attributes in _attributes(op))
    return any(isinstance(pin, OpPinAttr | ValuePinAttr) and not pin.data.by for pin in pinned)


def _attributes(op: Operation) -> Iterator[Mapping[str, Attribute]]:
    """Yield the attributes of an op and, for a function, the attributes of its arguments."""
    yield op.attributes
    if isinstance(op, FuncOp) and op.arg_attrs is not None:
        yield from (entry.data for entry in op.arg_attrs.data)


def strip_pins(module: ModuleOp) -> None:
    """Remove all pins from a module."""
    for op in module.walk():
        op.attributes.pop(PIN, None)
        if isinstance(op, FuncOp):
            op.attributes.pop(PINS, None)
            if op.arg_attrs is not None:
                merge_argument_attributes(op, {index: {PIN: None} for index in range(len(op.arg_attrs.data))})


def constraints_of(view: StepView) -> Constraints:
    """Read the constraints on a step from the IR."""
    constraints = Constraints(pins=pin_entries(view.func))
    for value, pin in _value_pins(view):
        if pin.limit is not None and isinstance(value, BlockArgument):
            constraints.arguments[value.index] = pin.limit
        elif pin.limit is not None:
            constraints.arrivals[value] = pin.limit
        if pin.copy is not None:
            _add_copy(constraints, value, pin.copy)
    for op in view.ops:
        if isinstance(op_pin := op.attributes.get(PIN), OpPinAttr):
            if op_pin.data.limit is not None:
                constraints.ops[op] = op_pin.data.limit
            for index, copy in op_pin.data.copies:
                _add_copy(constraints, op.outs[index], copy)
    return constraints


def _value_pins(view: StepView) -> Iterator[tuple[SSAValue, ValuePin]]:
    """Yield the pins of arguments, and of values from other stages."""
    for step_input in view.inputs:
        if isinstance(pin := argument_attribute(step_input.argument, PIN), ValuePinAttr):
            yield step_input.argument, pin.data
    for transfer in view.arrivals:
        if isinstance(pin := transfer.attributes.get(PIN), ValuePinAttr):
            yield transfer.result, pin.data


def _add_copy(found: Constraints, value: SSAValue, copy: Copy) -> None:
    found.copies[value] = copy.limit
    if copy.regathered:
        found.regathered.add(value)


def write_pins(view: StepView, constraints: Constraints) -> None:
    """
    Write constraints on the arguments, ops and transfers of a step. They replace limits from pin files; limits that a
    user wrote into the IR stay.
    """
    arguments: dict[int, dict[str, Attribute | None]] = {}
    for step_input in view.inputs:
        before, value = argument_attribute(step_input.argument, PIN), step_input.argument
        if not _is_by_hand(before):
            arguments[value.index] = {PIN: _value_pin(constraints.arguments.get(value.index), value, constraints)}
    # Put them after all other attributes, whatever the position of earlier pins.
    merge_argument_attributes(view.func, {index: {PIN: None} for index in arguments})
    merge_argument_attributes(view.func, arguments)
    for transfer in view.arrivals:
        _set_pin(transfer, _value_pin(constraints.arrivals.get(transfer.result), transfer.result, constraints))
    for op in view.ops:
        copies = tuple((at, copy) for at, out in enumerate(op.outs) if (copy := _copy(out, constraints)) is not None)
        limit = constraints.ops.get(op)
        _set_pin(op, OpPinAttr(OpPin(limit, copies)) if limit is not None or copies else None)


def _set_pin(op: ComputeOp | TransferOp, pin: Attribute | None) -> None:
    if _is_by_hand(op.attributes.get(PIN)):
        return
    op.attributes.pop(PIN, None)
    if pin is not None:
        op.attributes[PIN] = pin


def _is_by_hand(pin: Attribute | None) -> bool:
    return isinstance(pin, ValuePinAttr | OpPinAttr) and not pin.data.by


def _value_pin(limit: ShardingLimit | None, value: SSAValue, constraints: Constraints) -> ValuePinAttr | None:
    copy = _copy(value, constraints)
    return ValuePinAttr(ValuePin(limit, copy)) if limit is not None or copy is not None else None


def _copy(value: SSAValue, constraints: Constraints) -> Copy | None:
    limit = constraints.copies.get(value)
    return Copy(limit, value in constraints.regathered) if limit is not None else None
