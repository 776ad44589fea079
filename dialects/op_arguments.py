"""
Checking an op's arguments, the attributes without a dot in their names, by its schema.

An argument that is None is left out, but for tensors, which are listed in `absent`. A number may stand for a tensor,
and one value for a list, as in torch; where torch takes a whole number, it takes true and false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, TypeAttribute

from ..ir.ops.schema import PLACEMENT, TENSOR, Argument
from .compute import DTYPES
from .kinds import FLAG, Kind, entries_of, is_flag, one_of, shown


def argument_problem(
    known: Mapping[str, Argument], given: Mapping[str, Attribute], absent: Iterable[str]
) -> str | None:
    """
    Why an op does not have the arguments that its schema says; None where it does.

    Args:
        known: the schema's arguments, by name.
        given: the op's attributes, without those of a name with a dot and without `absent`.
        absent: the tensors that are None.
    """
    return next(_problems(known, given, absent), None)


def _problems(known: Mapping[str, Argument], given: Mapping[str, Attribute], absent: Iterable[str]) -> Iterator[str]:
    for name in absent:
        if (argument := known.get(name)) is None or argument.kind != TENSOR or not argument.optional:
            may = [each.name for each in known.values() if each.kind == TENSOR and each.optional]
            yield f"lists '{name}' in `absent`, expected tensors that may be None: {', '.join(may) or 'it has none'}"
    for name, value in given.items():
        if name in PLACEMENT:
            yield f"has {name} = {shown(value)}; how tensors lie in memory is the runtime's to say: leave it out"
        elif (argument := known.get(name)) is None:
            yield f"has {name} = {shown(value)}, expected the attributes of its schema: {_listed(known) or 'none'}"
        elif not (kind := _kind(argument)).holds(value):
            yield f"has {name} = {shown(value)}, expected {kind.words}"
    for argument in known.values():
        if argument.required and argument.kind != TENSOR and argument.name not in given:
            yield f"lacks its attribute `{argument.name}`, {_kind(argument).words}"


def _listed(known: Mapping[str, Argument]) -> str:
    plain = (each for each in known.values() if each.kind != TENSOR)
    return ", ".join(f"{each.name} ({_kind(each).words})" for each in plain)


@lru_cache(maxsize=1024)
def _kind(argument: Argument) -> Kind:
    if argument.words:
        return one_of(argument.words)
    kind, plural = _KINDS[argument.kind]
    return Kind(f"a list of {plural}", lambda value: _is_list_of(kind, value)) if argument.is_list else kind


def _is_list_of(kind: Kind, value: Attribute) -> bool:
    if isinstance(value, DenseArrayBase):
        return kind is _INTEGER
    return kind.holds(value) if (entries := entries_of(value)) is None else all(map(kind.holds, entries))


def _is_number(value: Attribute) -> bool:
    return isinstance(value, IntegerAttr | FloatAttr)


def _is_dtype(value: Attribute) -> bool:
    return isinstance(value, TypeAttribute) and str(value) in DTYPES


_INTEGER = Kind("a whole number", lambda value: isinstance(value, IntegerAttr))

_KINDS: Mapping[str, tuple[Kind, str]] = {
    "int": (_INTEGER, "whole numbers"),
    "SymInt": (_INTEGER, "whole numbers"),
    "float": (Kind("a number", lambda value: _is_number(value) and not is_flag(value)), "numbers"),
    "bool": (FLAG, "true and false"),
    "Scalar": (Kind("a number", _is_number), "numbers"),
    TENSOR: (Kind("a number, where it is no operand", _is_number), "numbers, where they are no operands"),
    "str": (Kind("text", lambda value: isinstance(value, StringAttr)), "texts"),
    "ScalarType": (Kind("an element type, as f32", _is_dtype), "element types"),
}
"""By torch's word for a type, what an attribute has to be, and what a list of them holds."""
