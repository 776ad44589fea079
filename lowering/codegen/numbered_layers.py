"""Parse names in numbered layers of the user's model, such as `h.3`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

Item = TypeVar("Item")

_NUMBERED = re.compile(r"(?:[^\W\d]\w*\.)*\d+(?![^.])", re.ASCII)
_NUMBERED_PLACE = re.compile(r"((?:[^\W\d]\w*\.)*)\d+(?=[.,\s]|$)", re.ASCII)


def numbered_layer(op: Operation) -> str:
    """Return the numbered layer of an op, `h.3` for `h.3.attn.q`, or an empty string."""
    match = _NUMBERED.match(op.location.desc.data) if isinstance(op.location, NameLoc) else None
    return match[0] if match is not None else ""


def numbered(name: str) -> tuple[str, int | None, str]:
    """Split the layer off a name and return its family and number, and the rest: `h`, 3, `.attn.q` for `h.3.attn.q`."""
    if (match := _NUMBERED.match(name)) is None:
        return "", None, name
    family, _, number = match[0].rpartition(".")
    return family, int(number), name.removeprefix(f"{family}.{int(number)}")


def equal_layers(
    items: Iterable[Item], layer_of: Callable[[Item], tuple[str, int | None]], form_of: Callable[[Item], object]
) -> list[list[list[Item]]]:
    """
    Divide a sequence into runs of consecutive equal layers, each a list of items; other items are runs of one layer.

    Args:
        layer_of: family and number of an item's layer; the family is empty for an item outside of numbered layers.
        form_of: description of an item that is equal for equal items of different layers.
    """
    runs: list[list[list[Item]]] = []
    for (family, number), members in groupby(items, layer_of):
        layer = list(members)
        before = runs[-1][-1] if runs and family and number else []
        follows = before and layer_of(before[0]) == (family, (number or 0) - 1)
        if follows and list(map(form_of, before)) == list(map(form_of, layer)):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def without_number(hint: str) -> str:
    """Return the name of a value within its layer: `attn.q.weight` for `h.3.attn.q.weight`."""
    return hint[match.end() + 1 :] if (match := _NUMBERED.match(hint)) is not None and match.end() < len(hint) else hint


def any_number(place: str) -> str:
    """Replace the layer's number in a place (`errors.place`) by a star: `h.*.attn.q` for `h.3.attn.q`."""
    if (match := _NUMBERED_PLACE.match(place)) is None:
        return place
    return f"{match[1]}*{place[match.end() :]}"
