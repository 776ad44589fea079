"""
The arguments of the ops in the table, by torch's schemas.

`schemas.txt` holds the schemas of all torch ops in the table, one per line, as torch prints them but without results;
`python -m shardwright.tools.schemas` writes it, and a test compares it with the installed torch. Ops that torch lacks
have their arguments in their rows, in the same notation.
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
"""Arguments about the place and layout of a tensor in memory, which the runtime decides; the IR has none of them."""


@dataclass(frozen=True)
class Argument:
    """
    One argument of a schema.

    Args:
        kind: torch's word for its type, or for the type of a list's entries: `Tensor`, `int`, `SymInt`, `float`,
            `bool`, `Scalar`, `str` or `ScalarType`.
        is_list: whether it is a list; torch takes one value in its place, too.
        optional: whether it may be None.
        required: whether it must be given, since it has no default and cannot be None.
        words: allowed words if it is one of a few words; empty otherwise.
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
    Return the arguments that the IR may hold for an op of the table, by name, or None if no schema is known.

    The place and the full shape of a part (`localize`) are arguments of local calls only.
    """
    spec = op_table()[name]
    if spec.arguments is not None:
        listed = {operand: Argument(operand, TENSOR) for operand in spec.operands}
        listed |= {argument.name: argument for argument in parse_arguments(spec.arguments)}
    elif (text := _schemas().get(name)) is not None:
        listed = {argument.name: argument for argument in parse_arguments(text)}
    else:
        return None
    placed = {argument_name for argument_name, place in (spec.localize or {}).items() if "." in place}
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
    """Return the arguments in `schemas.txt` by op name."""
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
"""Maps an op, without its overload, to the allowed words of its arguments, since schemas do not list them."""
