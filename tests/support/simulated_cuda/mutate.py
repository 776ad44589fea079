"""A function with a fault planted in its text, for a while."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any


@contextmanager
def mutated(function: Callable[..., Any], edits: Mapping[str, str]) -> Generator[None, None, None]:
    """
    Wherever it was imported to, `function` has other text in some places.

    Args:
        edits: by what stands there, and nowhere else in it, what stands there instead.

    Raises:
        ValueError: its text has no such place, or several.
    """
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{function.__qualname__} has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    module = compile("from __future__ import annotations\n" + text, "<mutation>", "exec")
    (code,) = (each for each in module.co_consts if isinstance(each, CodeType))
    before = function.__code__
    # File and lines stay those of the original, for where a fault is said to be.
    function.__code__ = code.replace(co_filename=before.co_filename, co_firstlineno=before.co_firstlineno)
    try:
        yield
    finally:
        function.__code__ = before
