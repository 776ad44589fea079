"""
The constraints on this package's attributes, by their place: on ops, functions, arguments or results.

Passes and the emitter read these attributes by name. Verification rejects attributes of a wrong type or range before a
pass meets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DenseIntOrFPElementsAttr, DictionaryAttr, IntegerAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from ..ir.mesh import AxisKind
from . import train
from .aten import INFERRED, RULE
from .compute import SIGNATURE, ComputeOp
from .faults import InnerFault
from .kinds import (
    COUNT,
    FLAG,
    NUMBER,
    POSITIVE,
    TEXT,
    UNIT,
    WHOLE,
    Kind,
    either,
    entries_of,
    instance_of,
    is_count,
    list_of,
    one_of,
    shown,
)
from .mesh_ops import find_mesh, meshes_of, verify_sharding
from .pins import PIN, PINS, OpPinAttr, PinEntryAttr, ValuePinAttr, verify_pins
from .pipe import SCHEDULE, STAGE, STAGES, SlotAttr
from .placed import AT, SHARDING, parts_of
from .ratios import PIECES, RATIOS, SEGMENT, verify_ratios
from .reuse import REUSES, verify_reuses
from .schedules import verify_schedule
from .sharding_attrs import RatiosAttr, RuleAttr, ShardingAttr, SignatureAttr
from .staged import Stages
from .step import (
    BACKWARD,
    BALANCE,
    BY_ROW,
    CHECKPOINT,
    CHOSEN,
    COMPILED,
    MEMORY_BUDGET,
    MEMORY_SAVING,
    NO_ROWS,
    PLAN,
    RECOMPUTED,
    REGATHER,
    RUNNERS_UP,
    SEARCH,
    WORKING,
)

SPREAD = instance_of("a #spmd.sharding", ShardingAttr)
ENTRIES = instance_of("a dictionary", DictionaryAttr)
_PARTS = Kind(
    "a dictionary of whole numbers",
    lambda value: isinstance(value, DictionaryAttr) and all(map(is_count, value.data.values())),
)
_SLOTS = list_of(instance_of("a #pipe.slot", SlotAttr), "#pipe.slots")
_POSITIONS = Kind("array<i64: ...>", lambda value: DenseArrayBase.constr(i64).verifies(value))
_VISIBILITIES = ("public", "private", "nested")
_DTYPES = ("float32", "bfloat16", "float16")

ON_ARGUMENTS: Mapping[str, Kind] = {
    train.PARAM: TEXT,
    train.STATE: list_of(TEXT, "two names", 2),
    train.BUFFER: TEXT,
    train.CONSTANT: TEXT,
    train.BATCH: TEXT,
    train.LEARNING_RATE: either(UNIT, COUNT, TEXT),
    train.STEP_COUNT: UNIT,
    train.SEED: UNIT,
    train.INITIAL: NUMBER,
    train.TRANSIENT: UNIT,
    NO_ROWS: UNIT,
    "train.tied": list_of(TEXT, "names"),
    "train.value": instance_of("a dense list of elements", DenseIntOrFPElementsAttr),
    "train.range": list_of(WHOLE, "two whole numbers", 2),
    SHARDING: SPREAD,
    WORKING: SPREAD,
    REGATHER: FLAG,
    PIN: instance_of("a #spmd.pin", ValuePinAttr),
    STAGE: COUNT,
    PIECES: list_of(POSITIVE, "whole numbers from 1"),
}

ON_RESULTS: Mapping[str, Kind] = {
    train.UPDATES: COUNT,
    train.LOSS: UNIT,
    train.GRAD: TEXT,
    train.METRIC: TEXT,
    train.OUTPUT: either(COUNT, TEXT),
    SHARDING: SPREAD,
}

ON_OPS: Mapping[str, Kind] = {
    SIGNATURE: instance_of("a #spmd.sig", SignatureAttr),
    RULE: instance_of("a #spmd.rule", RuleAttr),
    INFERRED: UNIT,
    AT: _PARTS,
    SEGMENT: COUNT,
    STAGE: COUNT,
    WORKING: list_of(either(SPREAD, UNIT), "#spmd.shardings, unit where there is none"),
    REGATHER: list_of(FLAG, "true and false"),
    PIN: instance_of("a #spmd.op_pin, or a #spmd.pin on a transfer", OpPinAttr, ValuePinAttr),
    BACKWARD: UNIT,
    CHECKPOINT: COUNT,
    RECOMPUTED: UNIT,
    BY_ROW: UNIT,
    REUSES: _POSITIONS,
    train.UPDATE: either(UNIT, TEXT),
    train.LOSS_GRADIENT: UNIT,
    train.EACH_GRADIENT: UNIT,
}

ON_FUNCTIONS: Mapping[str, Kind] = {
    train.FORWARD: UNIT,
    COMPILED: UNIT,
    train.REDUCE_DTYPE: one_of(_DTYPES),
    "train.optimizer": ENTRIES,
    RATIOS: list_of(instance_of("a #spmd.ratios", RatiosAttr), "#spmd.ratios"),
    STAGES: list_of(TEXT, "names of meshes"),
    SCHEDULE: list_of(_SLOTS, "lists of #pipe.slots"),
    PINS: list_of(instance_of("a #spmd.pin_entry", PinEntryAttr), "#spmd.pin_entries"),
    MEMORY_SAVING: UNIT,
    MEMORY_BUDGET: NUMBER,
    SEARCH: ENTRIES,
    PLAN: ENTRIES,
    CHOSEN: ENTRIES,
    RUNNERS_UP: list_of(ENTRIES, "dictionaries"),
    BALANCE: ENTRIES,
}

_PER_RESULT = (WORKING, REGATHER)

_OURS = ("aten.", "pipe.", "spmd.", "train.")
"""Prefixes of the names of our dialects' attributes; attributes with other prefixes are not checked."""


def verify_op_attributes(op: Operation) -> None:
    """
    Raise VerifyException unless the attributes of an op or function have the kinds that their names require, and its
    shardings fit its results.
    """
    if not op.attributes:
        return
    _verify(op.attributes, ON_FUNCTIONS if isinstance(op, FuncOp) else ON_OPS, "")
    for name in _PER_RESULT:
        listed = op.attributes.get(name)
        if (entries := entries_of(listed)) is not None and (count := len(entries)) != len(op.results):
            raise VerifyException(f"{name} has {count} entries, expected one for each of {len(op.results)} results")
    verify_reuses(op)
    if (working := op.attributes.get(WORKING)) is not None:
        for index, (entry, result) in enumerate(zip(entries_of(working) or (), op.results, strict=True)):
            if isinstance(entry, ShardingAttr):
                _verify_sharding(op, entry, result.type, f"{WORKING} of result {index}")
    if isinstance(signature := op.attributes.get(SIGNATURE), SignatureAttr) and not isinstance(op, ComputeOp):
        find_mesh(op, signature.data.mesh)


def verify_function_attributes(func: FuncOp) -> None:
    """
    Raise VerifyException unless the decisions written on a function fit it: the attributes of its arguments and
    results, its ratios, its pins, its stages and its schedule.
    """
    if func.sym_visibility is not None and func.sym_visibility.data not in _VISIBILITIES:
        raise VerifyException(f'visibility "{func.sym_visibility.data}", expected one of {", ".join(_VISIBILITIES)}')
    verify_ratios(func)
    verify_pins(func)
    _verify_roles(func)
    if len(func.body.blocks) == 1:
        Stages(func).verify()
        verify_schedule(func)
    _verify_parts(func)


def _verify_parts(func: FuncOp) -> None:
    """Raise InnerFault at the first op whose `spmd.at` names a part that no temporal axis has."""
    axes = [axis for mesh in meshes_of(func) for axis in mesh.mesh.axes if axis.kind is AxisKind.TEMPORAL]
    for op in func.walk():
        for name, part in parts_of(op).items() if AT in op.attributes else ():
            if all(name != axis.name or part >= axis.size for axis in axes):
                times = ", ".join(f'"{axis.name}" of {axis.size} parts' for axis in axes) or "there are none"
                raise InnerFault(op, f'{AT} is part {part} of "{name}", expected a part of an axis of time: {times}')


def _verify_roles(func: FuncOp) -> None:
    """
    Raise VerifyException unless the attributes of a function's arguments and results have the kinds that their names
    require, no two arguments of a stage are the same parameter or state, and each updated argument exists and has its
    result's type.
    """
    arguments = tuple(_listed(func, "argument", func.arg_attrs, len(func.function_type.inputs)))
    for index, entry in enumerate(arguments):
        _verify(entry, ON_ARGUMENTS, f" of argument {index}")
    results = tuple(_listed(func, "result", func.res_attrs, len(func.function_type.outputs)))
    for index, entry in enumerate(results):
        _verify(entry, ON_RESULTS, f" of result {index}")
    _verify_names(arguments)
    _verify_updates(func, results)
    for side, entries, types in (
        ("argument", arguments, func.function_type.inputs),
        ("result", results, func.function_type.outputs),
    ):
        for index, (entry, value_type) in enumerate(zip(entries, types, strict=False)):
            for name in (SHARDING, WORKING):
                if isinstance(given := entry.get(name), ShardingAttr):
                    _verify_sharding(func, given, value_type, f"{name} of {side} {index}")


def _verify_sharding(op: Operation, given: ShardingAttr, value_type: Attribute, where: str) -> None:
    try:
        verify_sharding(op, given, value_type)
    except VerifyException as error:
        raise VerifyException(f"{where}: {error}") from error


def _verify(given: Mapping[str, Attribute], known: Mapping[str, Kind], where: str) -> None:
    for name, value in given.items():
        if (kind := known.get(name)) is None:
            if name.startswith(_OURS):
                raise VerifyException(f"{name}{where} is an unknown attribute there, expected {', '.join(known)}")
        elif not kind.holds(value):
            raise VerifyException(f"{name}{where} is {shown(value)}, expected {kind.words}")


def _listed(
    func: FuncOp, side: str, listed: ArrayAttr[DictionaryAttr] | None, count: int
) -> Iterator[Mapping[str, Attribute]]:
    if listed is None:
        return
    if len(listed.data) != count:
        raise VerifyException(f"has attributes of {len(listed.data)} {side}s, expected one entry for each of {count}")
    yield from (entry.data for entry in listed)


def _verify_names(arguments: Iterable[Mapping[str, Attribute]]) -> None:
    known: dict[tuple[str, Attribute, Attribute | None], int] = {}
    for index, entry in enumerate(arguments):
        if len(roles := [role for role in train.ROLES if role in entry]) > 1:
            raise VerifyException(f"argument {index} has the roles {' and '.join(roles)}, expected one")
        for role in (train.PARAM, train.STATE, train.BUFFER, train.CONSTANT):
            if (name := entry.get(role)) is None:
                continue
            if (other := known.setdefault((role, name, entry.get(STAGE)), index)) != index:
                raise VerifyException(f"arguments {other} and {index} are both {role} = {name}; names are unique")


def _verify_updates(func: FuncOp, results: Iterable[Mapping[str, Attribute]]) -> None:
    types, known = func.function_type.inputs.data, dict[int, int]()
    for index, entry in enumerate(results):
        if len(roles := [role for role in _RESULT_ROLES if role in entry]) > 1:
            raise VerifyException(f"result {index} has the roles {' and '.join(roles)}, expected one")
        if not isinstance(target := entry.get(train.UPDATES), IntegerAttr):
            continue
        if (number := target.value.data) >= len(types):
            raise VerifyException(
                f"{train.UPDATES} of result {index} is {number}, expected the index of one of {len(types)} arguments"
            )
        if (given := func.function_type.outputs.data[index]) != types[number]:
            raise VerifyException(
                f"result {index} of type {given} is the new value of argument {number}, whose type is {types[number]}"
            )
        if (other := known.setdefault(number, index)) != index:
            raise VerifyException(f"results {other} and {index} are both the new value of argument {number}")


_RESULT_ROLES = (train.UPDATES, train.LOSS, train.GRAD, train.METRIC, train.OUTPUT)
