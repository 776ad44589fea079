"""
Convert names and texts of the IR to Python text; no other module does this.

A string of the IR appears in a program as a literal (`quoted`), as a checked name (`checked_name`, `dotted`, `dtype`)
or in a comment or docstring (`remark`). Codegen writes all other text of a program. The identifiers of values
(`names.identifier`) are always valid.
"""

from __future__ import annotations

import keyword

from xdsl.utils.exceptions import VerifyException

from ..calls.dtypes import torch_dtype

MOST_SHOWN = 60
"""The number of characters of a refused name to show."""


class NotPythonError(VerifyException):
    """An error for text of the IR that must be a name in the program but is not a Python name."""


def quoted(text: str) -> str:
    """Return `text` as a literal, in double quotes if it has no special characters."""
    plain = repr(text)
    return plain if '"' in text or "\\" in plain or "'" in text else f'"{text}"'


def is_name(text: str) -> bool:
    """Return whether `text` is an ASCII Python name other than a keyword."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def checked_name(text: str) -> str:
    """
    Return `text` if it is a Python name.

    Raises:
        NotPythonError: `text` is not a Python name.
    """
    if not is_name(text):
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        raise NotPythonError(f"{shown!r} cannot be a name in a program; expected letters, digits and underscores")
    return text


def dotted(text: str) -> str:
    """Return `text` if it consists of Python names joined by dots; raise NotPythonError otherwise."""
    return ".".join(map(checked_name, text.split(".")))


def dtype(name: str) -> str:
    """Return `torch.float32` for `float32`; raise VerifyException if torch has no such dtype."""
    torch_dtype(checked_name(name))
    return f"torch.{name}"


def remark(text: str) -> str:
    """Return `text` as one line for a comment or docstring, without characters that could end it."""
    return "".join("'" if c in '"\\' else c if c.isprintable() else " " for c in text)
