"""Shapes of JSON files that a program wrote and that a user may have edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Literal, NotRequired, TypeAlias, cast, get_args, get_origin, get_type_hints, is_typeddict

from .cluster_fields import shown

Shape: TypeAlias = "type | range | tuple[Shape, ...] | list[Shape] | dict[str, Shape]"
"""
The shape of an entry: its type, a range for a whole number, alternative shapes, the shape of a list's entries, or the
shapes of an object's entries. An entry may be missing if its key ends in `?`; the key `*` allows any other name.
"""

NUMBER = (float, int)
COUNT = range(2**53)


def shape_of(kind: Any) -> Shape:
    """Return the shape of values of a type: a `TypedDict`, a list, a dictionary, a union, a literal or a plain type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return entries_of(kind)
    if origin is Literal:
        return type(cast("object", arguments[0]))
    if origin in (list, dict):
        return [shape_of(arguments[0])] if origin is list else {"*": shape_of(arguments[1])}
    if arguments:
        return tuple(map(shape_of, arguments))
    return NUMBER if kind is float else cast("type", kind)


def entries_of(kind: Any) -> dict[str, Shape]:
    """Return the shapes of the entries of a `TypedDict`."""
    marked = get_type_hints(kind, include_extras=True)
    keys = {name: f"{name}?" if get_origin(hint) is NotRequired else name for name, hint in marked.items()}
    return {keys[name]: shape_of(hint) for name, hint in get_type_hints(kind).items()}


def fault_of(value: object, shape: Shape, place: str = "") -> str | None:
    """Return a message about the first entry that does not have its shape, or None."""
    match shape:
        case type():
            is_one = isinstance(value, shape) and not (isinstance(value, bool) and shape in (int, float))
            # A whole number with more bits does not fit into a float.
            is_one = is_one and not (isinstance(value, int) and value.bit_length() > 1000)
            is_one = is_one and not (isinstance(value, float) and not isfinite(value))
            return None if is_one else f"{place} is {shown(value)}, expected {_name(shape)}"
        case range():
            is_one = isinstance(value, int) and not isinstance(value, bool) and value in shape
            return None if is_one else f"{place} is {shown(value)}, expected {_name(shape)}"
        case tuple():
            faults = [fault_of(value, option, place) for option in shape]
            is_object = isinstance(value, dict)
            inner = next(filter(None, faults), None) if is_object else None
            return None if None in faults else inner or f"{place} is {shown(value)}, expected {_name(shape)}"
        case list():
            if not isinstance(value, list):
                return f"{place} is {shown(value)}, expected a list"
            entries = enumerate(cast("list[object]", value))
            return next(filter(None, (fault_of(entry, shape[0], f"{place}[{at}]") for at, entry in entries)), None)
        case dict():
            if not isinstance(value, dict):
                return f"{place} is {shown(value)}, expected an object"
            return next(filter(None, _faults(cast("Mapping[str, object]", value), shape, place)), None)


def _faults(value: Mapping[str, object], shape: Mapping[str, Shape], place: str) -> Iterator[str | None]:
    for name, entry in value.items():
        entry_shape = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        at = f"{place}.{shown(name)[1:-1]}".lstrip(".")
        yield fault_of(entry, entry_shape, at) if entry_shape is not None else f"{at} is not expected"
    for name in shape:
        if name != "*" and not name.endswith("?") and name not in value:
            yield f"{place} has no {name!r}".strip()


def _name(shape: Shape) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    if isinstance(shape, range):
        return f"a whole number from {shape.start} to {shape.stop - 1}"
    if isinstance(shape, tuple):
        return " or ".join(map(_name, shape))
    return names[shape] if isinstance(shape, type) else "an object"
