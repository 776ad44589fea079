"""
What the attributes of this package's dialects may be, by where they stand: on ops, functions, arguments, results.

Passes and the emitter read them by name, so that an attribute of another type or out of range would be met in the
middle of a pass; the verifier meets it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    UnitAttr,
    i1,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from . import train
from .aten import INFERRED, RULE
from .compute import SIGNATURE
from .pins import PIN, PINS, OpPinAttr, PinEntryAttr, ValuePinAttr
from .pipe import SCHEDULE, STAGE, STAGES, SlotAttr
from .placed import AT, SHARDING
from .ratios import PIECES, RATIOS, SEGMENT
from .sharding_attrs import RatiosAttr, RuleAttr, ShardingAttr, SignatureAttr
from .step import (
    BACKWARD,
    BALANCE,
    CHECKPOINT,
    CHOSEN,
    FRUGAL,
    PLAN,
    RECOMPUTED,
    REGATHER,
    ROOM,
    RUNNERS_UP,
    SEARCH,
    WORKING,
)

MOST_CHARACTERS = 10_000
"""Of a name."""

MOST = 2**31
"""No count, index or number of a stage, segment, group or region comes near it."""


@dataclass(frozen=True)
class Kind:
    """What an attribute has to be: in words, and as a test."""

    words: str
    holds: Callable[[Attribute], bool]


def _is_text(value: Attribute) -> bool:
    return isinstance(value, StringAttr) and len(value.data) <= MOST_CHARACTERS


def _integer(value: Attribute) -> int | None:
    return value.value.data if isinstance(value, IntegerAttr) else None


def _is_count(value: Attribute) -> bool:
    return (number := _integer(value)) is not None and 0 <= number < MOST and not _is_flag(value)


def _is_flag(value: Attribute) -> bool:
    return isinstance(value, IntegerAttr) and cast("IntegerAttr[IntegerType]", value).type == i1


def _is_number(value: Attribute) -> bool:
    if isinstance(value, FloatAttr):
        return math.isfinite(value.value.data)
    return (number := _integer(value)) is not None and abs(number) < 2**63


def _entries(value: Attribute) -> Iterable[Attribute] | None:
    return cast("ArrayAttr[Attribute]", value).data if isinstance(value, ArrayAttr) else None


def _of(words: str, *classes: type[Attribute]) -> Kind:
    return Kind(words, lambda value: isinstance(value, classes))


def _list(kind: Kind, plural: str, count: int | None = None) -> Kind:
    def holds(value: Attribute) -> bool:
        entries = _entries(value)
        return entries is not None and count in (None, len(tuple(entries))) and all(map(kind.holds, entries))

    return Kind(f"a list of {plural}", holds)


def _either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.words for kind in kinds), lambda value: any(kind.holds(value) for kind in kinds))


TEXT = Kind(f"text of at most {MOST_CHARACTERS} characters", _is_text)
UNIT = _of("nothing", UnitAttr)
COUNT = Kind("a whole number from 0", _is_count)
FLAG = Kind("true or false", _is_flag)
NUMBER = Kind("a finite number", _is_number)
WHOLE = Kind("a whole number", lambda value: _integer(value) is not None)
POSITIVE = Kind("a whole number from 1", lambda value: _is_count(value) and _integer(value) != 0)
SPREAD = _of("a #spmd.sharding", ShardingAttr)
ENTRIES = _of("a dictionary", DictionaryAttr)
_PARTS = Kind(
    "a dictionary of whole numbers",
    lambda value: isinstance(value, DictionaryAttr) and all(map(_is_count, value.data.values())),
)
_SLOTS = _list(_of("a #pipe.slot", SlotAttr), "#pipe.slots")
_DTYPES = ("float32", "bfloat16", "float16")

ON_ARGUMENTS: Mapping[str, Kind] = {
    train.PARAM: TEXT,
    train.STATE: _list(TEXT, "two names", 2),
    train.BUFFER: TEXT,
    train.CONSTANT: TEXT,
    train.BATCH: TEXT,
    train.LEARNING_RATE: _either(UNIT, COUNT, TEXT),
    train.STEP_COUNT: UNIT,
    train.SEED: UNIT,
    train.INITIAL: NUMBER,
    "train.tied": _list(TEXT, "names"),
    "train.range": _list(WHOLE, "two whole numbers", 2),
    SHARDING: SPREAD,
    WORKING: SPREAD,
    REGATHER: FLAG,
    PIN: _of("a #spmd.pin", ValuePinAttr),
    STAGE: COUNT,
    PIECES: _list(POSITIVE, "whole numbers from 1"),
}

ON_RESULTS: Mapping[str, Kind] = {
    train.UPDATES: COUNT,
    train.LOSS: UNIT,
    train.GRAD: TEXT,
    train.METRIC: TEXT,
    train.OUTPUT: _either(COUNT, TEXT),
    SHARDING: SPREAD,
}

ON_OPS: Mapping[str, Kind] = {
    SIGNATURE: _of("a #spmd.sig", SignatureAttr),
    RULE: _of("a #spmd.rule", RuleAttr),
    INFERRED: UNIT,
    AT: _PARTS,
    SEGMENT: COUNT,
    STAGE: COUNT,
    WORKING: _list(_either(SPREAD, UNIT), "#spmd.shardings, unit where there is none"),
    REGATHER: _list(FLAG, "true and false"),
    PIN: _of("a #spmd.op_pin, or a #spmd.pin on a transfer", OpPinAttr, ValuePinAttr),
    BACKWARD: UNIT,
    CHECKPOINT: COUNT,
    RECOMPUTED: UNIT,
    train.UPDATE: _either(UNIT, TEXT),
    train.LOSS_GRADIENT: UNIT,
}

ON_FUNCTIONS: Mapping[str, Kind] = {
    train.FORWARD: UNIT,
    train.REDUCE_DTYPE: Kind(
        f"one of {', '.join(_DTYPES)}", lambda value: isinstance(value, StringAttr) and value.data in _DTYPES
    ),
    "train.optimizer": ENTRIES,
    RATIOS: _list(_of("a #spmd.ratios", RatiosAttr), "#spmd.ratios"),
    STAGES: _list(TEXT, "names of meshes"),
    SCHEDULE: _list(_SLOTS, "lists of #pipe.slots"),
    PINS: _list(_of("a #spmd.pin_entry", PinEntryAttr), "#spmd.pin_entries"),
    FRUGAL: UNIT,
    ROOM: NUMBER,
    SEARCH: ENTRIES,
    PLAN: ENTRIES,
    CHOSEN: ENTRIES,
    RUNNERS_UP: _list(ENTRIES, "dictionaries"),
    BALANCE: ENTRIES,
}

_PER_RESULT = (WORKING, REGATHER)


def verify_op_attributes(op: Operation) -> None:
    """Raise VerifyException unless the attributes of an op, or a function, are what their names stand for."""
    _verify(op.attributes, ON_FUNCTIONS if isinstance(op, FuncOp) else ON_OPS, "")
    for name in _PER_RESULT:
        listed = op.attributes.get(name)
        if isinstance(listed, ArrayAttr) and (count := len(cast("ArrayAttr[Attribute]", listed))) != len(op.results):
            raise VerifyException(f"{name} has {count} entries, expected one for each of {len(op.results)} results")


def verify_step_attributes(func: FuncOp) -> None:
    """
    Raise VerifyException unless the attributes of a function's arguments and results are what their names stand for,
    no two arguments of a stage are the same parameter or state, and what is updated exists and has the type.
    """
    arguments = tuple(_listed(func, "argument", func.arg_attrs, len(func.function_type.inputs)))
    for index, entry in enumerate(arguments):
        _verify(entry, ON_ARGUMENTS, f" of argument {index}")
    results = tuple(_listed(func, "result", func.res_attrs, len(func.function_type.outputs)))
    for index, entry in enumerate(results):
        _verify(entry, ON_RESULTS, f" of result {index}")
    _verify_names(arguments)
    _verify_updates(func, results)


def _verify(given: Mapping[str, Attribute], known: Mapping[str, Kind], where: str) -> None:
    for name, value in given.items():
        if (kind := known.get(name)) is not None and not kind.holds(value):
            shown = str(value)
            shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
            raise VerifyException(f"{name}{where} is {shown}, expected {kind.words}")


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
