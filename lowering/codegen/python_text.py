"""
The one place where names and texts of the IR become Python text.

A string of the IR stands in a program as a literal (`quoted`), as a checked name (`checked_name`, `dotted`, `dtype`) or
in a remark, which is a comment or a line of the docstring (`remark`). Everything else in a program is written by us.
The identifiers that values' names become (`names.identifier`) are always valid.
"""

from __future__ import annotations

import keyword

from xdsl.utils.exceptions import VerifyException

from ..calls.dtypes import torch_dtype

MOST_SHOWN = 60
"""Characters of a name that is refused."""


class NotPythonError(VerifyException):
    """Something in the IR that would have to be a name in the program and is none; the message says what."""


def quoted(text: str) -> str:
    """`text` as a literal, in double quotes where it holds nothing special."""
    plain = repr(text)
    return plain if '"' in text or "\\" in plain or "'" in text else f'"{text}"'


def is_name(text: str) -> bool:
    """Whether `text` is a Python name that is written as it is read: ASCII, and no keyword."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def checked_name(text: str) -> str:
    """
    `text`, where it is a Python name.

    Raises:
        NotPythonError: it is not.
    """
    if not is_name(text):
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        raise NotPythonError(f"{shown!r} cannot be a name in a program; expected letters, digits and underscores")
    return text


def dotted(text: str) -> str:
    """`text`, where it is Python names joined by dots; NotPythonError where it is not."""
    return ".".join(map(checked_name, text.split(".")))


def dtype(name: str) -> str:
    """`torch.float32` for `float32`; VerifyException where torch has no such dtype."""
    torch_dtype(checked_name(name))
    return f"torch.{name}"


def remark(text: str) -> str:
    """`text` for a comment or docstring: one line, with nothing in it that could end either."""
    return "".join("'" if c in '"\\' else c if c.isprintable() else " " for c in text)
