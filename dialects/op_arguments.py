"""
Check an op's arguments, the attributes without a dot in their names, against its schema.

An argument that is None is omitted; a tensor that is None is listed in `absent`. As in torch, a number may stand for a
tensor, one value for a list, and true or false for a whole number.
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
    Return why an op's arguments do not match its schema, or None if they do.

    Args:
        known: the schema's arguments, by name.
        given: the op's attributes, except `absent` and names with a dot.
        absent: names of the tensors that are None.
    """
    return next(_problems(known, given, absent), None)


def _problems(known: Mapping[str, Argument], given: Mapping[str, Attribute], absent: Iterable[str]) -> Iterator[str]:
    for name in absent:
        if (argument := known.get(name)) is None or argument.kind != TENSOR or not argument.optional:
            may = [
                known_argument.name
                for known_argument in known.values()
                if known_argument.kind == TENSOR and known_argument.optional
            ]
            yield f"lists '{name}' in `absent`, expected tensors that may be None: {', '.join(may) or 'it has none'}"
    for name, value in given.items():
        if name in PLACEMENT:
            yield f"has {name} = {shown(value)}; the runtime decides the memory layout of tensors: remove the attribute"
        elif (argument := known.get(name)) is None:
            yield f"has {name} = {shown(value)}, expected the attributes of its schema: {_listed(known) or 'none'}"
        elif not (kind := _kind(argument)).holds(value):
            yield f"has {name} = {shown(value)}, expected {kind.words}"
    for argument in known.values():
        if argument.required and argument.kind != TENSOR and argument.name not in given:
            yield f"lacks its attribute `{argument.name}`, {_kind(argument).words}"


def _listed(known: Mapping[str, Argument]) -> str:
    plain = (argument for argument in known.values() if argument.kind != TENSOR)
    return ", ".join(f"{argument.name} ({_kind(argument).words})" for argument in plain)


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
"""Maps torch's word for a type to the kind of its attributes, and to a plural that describes lists of them."""
