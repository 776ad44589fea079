"""Running the text of a program once more, rewritten."""

from __future__ import annotations

import linecache
from typing import Any


def run_text(text: str, name: str, **given: Any) -> dict[str, Any]:
    """
    What the text of a module defines.

    Args:
        name: what tracebacks call the file; they show its lines, although there is none.
        given: names that it finds.
    """
    # A size and time of None: the lines stay.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    made: dict[str, Any] = {"__name__": "shardwright_rewritten", **given}
    exec(compile(text, name, "exec"), made)
    return made
