"""Layers of the user's model that have a number, such as `h.3`, and what is in them."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

_NUMBERED = re.compile(r"(?:[^\W\d]\w*\.)*\d+(?![^.])", re.ASCII)
_NUMBERED_PLACE = re.compile(r"((?:[^\W\d]\w*\.)*)\d+(?=[.,\s]|$)", re.ASCII)


def numbered_layer(op: Operation) -> str:
    """The layer that an op is of, up to its number: `h.3` for `h.3.attn.q`; empty where it has none."""
    found = _NUMBERED.match(op.location.desc.data) if isinstance(op.location, NameLoc) else None
    return found[0] if found is not None else ""


def numbered(name: str) -> tuple[str, int | None]:
    """What a numbered layer is called, and its number, for the name of something in it: `h`, 3 for `h.3.attn.q`."""
    if (found := _NUMBERED.match(name)) is None:
        return "", None
    family, _, number = found[0].rpartition(".")
    return family, int(number)


def without_number(hint: str) -> str:
    """The name of a value within its layer: `attn.q.weight` for `h.3.attn.q.weight`."""
    return hint[found.end() + 1 :] if (found := _NUMBERED.match(hint)) is not None and found.end() < len(hint) else hint


def any_number(place: str) -> str:
    """A place in the model (`errors.place`) that stands for that of all layers: `h.*.attn.q` for `h.3.attn.q`."""
    if (found := _NUMBERED_PLACE.match(place)) is None:
        return place
    return f"{found[1]}*{place[found.end() :]}"
