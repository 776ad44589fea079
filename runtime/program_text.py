"""Execution of a rewritten program text."""

from __future__ import annotations

import linecache
from typing import Any


def run_text(text: str, name: str, **given: Any) -> dict[str, Any]:
    """
    Execute the text of a module and return its names.

    Args:
        name: file name in tracebacks, which show the lines of the text although no such file exists.
        given: names that the module can use.
    """
    # With a size and time of None, `linecache` keeps the lines.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "shardwright_rewritten", **given}
    exec(compile(text, name, "exec"), names)
    return names
