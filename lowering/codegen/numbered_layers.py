"""Parse names in numbered layers of the user's model, such as `h.3`."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

_NUMBERED = re.compile(r"(?:[^\W\d]\w*\.)*\d+(?![^.])", re.ASCII)
_NUMBERED_PLACE = re.compile(r"((?:[^\W\d]\w*\.)*)\d+(?=[.,\s]|$)", re.ASCII)


def numbered_layer(op: Operation) -> str:
    """Return the numbered layer of an op, `h.3` for `h.3.attn.q`, or an empty string."""
    match = _NUMBERED.match(op.location.desc.data) if isinstance(op.location, NameLoc) else None
    return match[0] if match is not None else ""


def numbered(name: str) -> tuple[str, int | None]:
    """Split the layer off a name and return its family and number: `h`, 3 for `h.3.attn.q`."""
    if (match := _NUMBERED.match(name)) is None:
        return "", None
    family, _, number = match[0].rpartition(".")
    return family, int(number)


def without_number(hint: str) -> str:
    """Return the name of a value within its layer: `attn.q.weight` for `h.3.attn.q.weight`."""
    return hint[match.end() + 1 :] if (match := _NUMBERED.match(hint)) is not None and match.end() < len(hint) else hint


def any_number(place: str) -> str:
    """Replace the layer's number in a place (`errors.place`) by a star: `h.*.attn.q` for `h.3.attn.q`."""
    if (match := _NUMBERED_PLACE.match(place)) is None:
        return place
    return f"{match[1]}*{place[match.end() :]}"
