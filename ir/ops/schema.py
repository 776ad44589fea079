"""
The arguments of the ops in the table, by torch's schemas.

`schemas.txt` holds the schemas of all ops of torch that the table has, one a line, as torch prints them but for the
results; `python -m shardwright.tools.schemas` writes it, and a test compares it with the torch that is installed. Ops
that are none of torch's have their arguments in their rows, in the same notation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .table import op_table

SCHEMAS = Path(__file__).with_name("schemas.txt")
"""The schemas of torch's ops, sorted by name."""

TENSOR = "Tensor"

PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
"""Arguments about where and how a tensor lies in memory, which is the runtime's business: the IR has none of them."""


@dataclass(frozen=True)
class Argument:
    """
    One argument of a schema.

    Args:
        kind: torch's word for its type, that of the entries of a list: `Tensor`, `int`, `SymInt`, `float`, `bool`,
            `Scalar`, `str` or `ScalarType`.
        is_list: whether it is a list, for which torch takes one value too.
        optional: whether it may be None.
        required: whether it has to be given, having no default and no None.
        words: those that it may be, if it is one of a few; empty otherwise.
    """

    name: str
    kind: str
    is_list: bool = False
    optional: bool = False
    required: bool = True
    words: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def arguments_of(name: str) -> Mapping[str, Argument] | None:
    """
    The arguments of an op of the table that the IR may hold, by name; None where no schema of it is known.

    The place and the full shape of a part (`localize`) are arguments of local calls alone.
    """
    spec = op_table()[name]
    if spec.arguments is not None:
        listed = {operand: Argument(operand, TENSOR) for operand in spec.operands}
        listed |= {each.name: each for each in parse_arguments(spec.arguments)}
    elif (text := _schemas().get(name)) is not None:
        listed = {each.name: each for each in parse_arguments(text)}
    else:
        return None
    placed = {each for each, place in (spec.localize or {}).items() if "." in place}
    words = _WORDS.get(name.partition(".")[0], {})
    return {
        each.name: Argument(each.name, each.kind, each.is_list, each.optional, each.required, words.get(each.name, ()))
        for each in listed.values()
        if each.name not in PLACEMENT | placed
    }


_ARGUMENT = re.compile(
    r"(?P<kind>\w+)(?:\([^)]*\))?(?P<inner>\?)?(?P<list>\[\d*\])?(?P<outer>\?)? (?P<name>\w+)(?:=(?P<default>.+))?"
)


def parse_arguments(text: str) -> Iterator[Argument]:
    """Yield the arguments of a schema written as torch does: `Tensor self, int[1]? dim, *, ScalarType? dtype=None`."""
    for part in re.split(r", (?![^\[(]*[\])])", text):
        if part in ("", "*"):
            continue
        match = _ARGUMENT.fullmatch(part)
        if match is None:
            raise ValueError(f"'{part}' is no argument of a schema")
        is_list = match["list"] is not None
        optional = match["outer"] is not None or (match["inner"] is not None and not is_list)
        yield Argument(match["name"], match["kind"], is_list, optional, match["default"] is None and not optional)


@lru_cache(maxsize=1)
def _schemas() -> dict[str, str]:
    """The arguments in `schemas.txt`, by the op's name."""
    lines = SCHEMAS.read_text(encoding="utf-8").splitlines()
    return {name: rest.removesuffix(")") for name, _, rest in (line.partition("(") for line in lines)}


_WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gelu": {"approximate": ("none", "tanh")},
    "gelu_backward": {"approximate": ("none", "tanh")},
    "div": {"rounding_mode": ("floor", "trunc")},
    "scatter": {"reduce": ("add", "multiply")},
    "scatter_reduce": {"reduce": ("sum", "prod", "mean", "amax", "amin")},
    "index_reduce": {"reduce": ("prod", "mean", "amax", "amin")},
    "searchsorted": {"side": ("left", "right")},
    "linalg_qr": {"mode": ("reduced", "complete", "r")},
    "_linalg_eigh": {"UPLO": ("L", "U")},
    "_linalg_svd": {"driver": ("gesvd", "gesvdj", "gesvda")},
}
"""By the op without its overload, the words that an argument may be, of which schemas say nothing."""
