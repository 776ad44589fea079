"""Lay out emitted Python: brackets on one line if they fit, else filled lines or one item per line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from .python_text import checked_name, quoted

WIDTH = 110
"""The maximum width of a line of the program, in columns."""

INDENT = "    "

SUMS = "sums"
"""The parameter of a fragment, and of its layers, that the sums over the parts of the batch are passed in."""


@dataclass(frozen=True)
class Group:
    """
    Items in brackets; `opening` ends in the bracket and may start with more text: `inputs=(`.

    If the items do not fit on one line, `fill` puts as many on each line as fit; otherwise each item has a line.
    `mixed` fills lines even if some items are longer than a line.
    `comma` is False for the pieces of a string.
    """

    opening: str
    items: tuple[Doc, ...]
    closing: str
    fill: bool = False
    comma: bool = True
    mixed: bool = False


@dataclass(frozen=True)
class Repeated:
    """A tuple that repeats one item `count` times."""

    item: object
    count: int


Doc: TypeAlias = "str | Group"
"""A piece of program text: an atom, or a group of pieces."""


def flat(doc: Doc) -> str:
    """Return the text on one line."""
    if isinstance(doc, str):
        return doc
    separator = ", " if doc.comma else " "
    return doc.opening + separator.join(map(flat, doc.items)) + doc.closing


def lines(doc: Doc, indent: str = "", suffix: str = "") -> Iterator[str]:
    """Yield the text on as many lines as the width requires."""
    text = indent + flat(doc) + suffix
    if isinstance(doc, str) or len(text) <= WIDTH or not doc.items:
        yield text
        return
    yield indent + doc.opening
    inner, comma = indent + INDENT, "," if doc.comma else ""
    fits = [doc.fill and len(inner) + len(flat(item)) + len(comma) <= WIDTH for item in doc.items]
    fits = fits if doc.mixed or all(fits) else [False] * len(fits)
    for short, items in groupby(zip(fits, doc.items, strict=True), lambda each: each[0]):
        if short:
            yield from (inner + line for line in filled([flat(item) for _, item in items], len(inner), comma))
        else:
            for _, item in items:
                yield from lines(item, inner, comma)
    yield indent + doc.closing.lstrip(",") + suffix


def assignment(targets: Sequence[str], value: Group, indent: str, *, unpacked: bool = False) -> Iterator[str]:
    """
    Yield the lines of `targets = value`.

    Args:
        unpacked: whether the value is a sequence even for a single target.
    """
    left = ", ".join(targets)
    left = f"({left},)" if unpacked and len(targets) == 1 else left
    if not targets or len(f"{indent}{left} = {value.opening}") <= WIDTH:
        opening = f"{left} = {value.opening}" if targets else value.opening
    else:
        yield f"{indent}("
        inner = indent + INDENT
        end = "," if unpacked or len(targets) > 1 else ""
        yield from (inner + line for line in filled(targets, len(inner), end))
        opening = f") = {value.opening}"
    yield from lines(replace(value, opening=opening), indent)


def filled(atoms: Sequence[str], indent: int, end: str = "") -> Iterator[str]:
    """
    Yield lines with as many comma-separated atoms as fit.

    Args:
        indent: number of columns to reserve in each line.
        end: end of the last line.
    """
    line = ""
    for position, atom in enumerate(atoms):
        piece = atom + ("," if position + 1 < len(atoms) else end)
        if line and indent + len(line) + 1 + len(piece) > WIDTH:
            yield line
            line = piece
        else:
            line = f"{line} {piece}" if line else piece
    if line:
        yield line


def call(function: str, items: Iterable[Doc], *, fill: bool = True) -> Group:
    """Return `function(items)`."""
    return Group(function + "(", tuple(items), ")", fill)


def tuple_of(items: Iterable[Doc], prefix: str = "", *, fill: bool = True) -> Group:
    """Return `(items)`, with a trailing comma for a single item."""
    listed = tuple(items)
    return Group(prefix + "(", listed, ",)" if len(listed) == 1 else ")", fill)


def list_of(items: Iterable[Doc]) -> Group:
    """Return `[items]`."""
    return Group("[", tuple(items), "]", fill=True)


def prefixed(text: str, doc: Doc) -> Doc:
    """Return a piece with text in front of it."""
    return text + doc if isinstance(doc, str) else replace(doc, opening=text + doc.opening)


def keyword(name: str, doc: Doc) -> Doc:
    """Return `name=doc`; raise NotPythonError if `name` is not a Python name."""
    return prefixed(f"{checked_name(name)}=", doc)


def returned(results: Sequence[Doc], *, as_tuple: bool = True) -> Iterator[str]:
    """
    Yield the lines of `return results` in a function.

    Args:
        as_tuple: whether a single result is returned as a tuple.
    """
    if not as_tuple:
        yield from lines(prefixed("return ", results[0]), INDENT)
        return
    line = f"{INDENT}return {', '.join(map(flat, results))}{',' if len(results) == 1 else ''}"
    yield from [line] if len(line) <= WIDTH else lines(tuple_of(results, "return "), INDENT)


def literal(value: object) -> Doc:
    """Return the Python text of a number, a string, None, or a sequence or mapping of plain values."""
    match value:
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case bool() | int() | float() | None:
            return repr(value)
        case str():
            return string(value)
        case Repeated(item, count):
            return f"({flat(literal(item))},) * {count}"
        case Mapping():
            entries = (prefixed(f"{flat(string(key))}: ", literal(item)) for key, item in value.items())
            return Group("{", tuple(entries), "}")
        case list() | tuple():
            return tuple_of(map(literal, value))
        case _:
            raise TypeError(f"a value of type {type(value).__name__} cannot be written as a Python literal: {value!r}")


def repeated_tuple(items: Sequence[Doc]) -> Doc:
    """Return the text of a tuple; a periodic tuple is written as its shortest period times a number."""
    sizes = (size for size in range(1, len(items)) if len(items) % size == 0)
    size = next((size for size in sizes if list(items) == list(items[:size]) * (len(items) // size)), len(items))
    doc = tuple_of(items[:size])
    return doc if size == len(items) else replace(doc, closing=f"{doc.closing} * {len(items) // size}")


def string(text: str) -> Doc:
    """Return a string literal, in double quotes if possible; a long string is split into pieces."""
    if len(text) <= WIDTH - 30:
        return quoted(text)
    words = text.split(" ")
    pieces = [words[0]]
    for word in words[1:]:
        if len(pieces[-1]) + len(word) < WIDTH - 30:
            pieces[-1] += " " + word
        else:
            pieces[-1] += " "
            pieces.append(word)
    return Group("(", tuple(map(quoted, pieces)), ")", comma=False)
