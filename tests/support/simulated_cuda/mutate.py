"""A context that plants a fault in a function."""

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
    Replace pieces of the source of `function`, for all modules that have imported it.

    Args:
        edits: from a piece of source that occurs once to its replacement.

    Raises:
        ValueError: a piece does not occur exactly once.
    """
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{function.__qualname__} has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    module = compile("from __future__ import annotations\n" + text, "<mutation>", "exec")
    (code,) = (each for each in module.co_consts if isinstance(each, CodeType))
    before = function.__code__
    # Keep the file and line of the original, for the reported places of faults.
    function.__code__ = code.replace(co_filename=before.co_filename, co_firstlineno=before.co_firstlineno)
    try:
        yield
    finally:
        function.__code__ = before
