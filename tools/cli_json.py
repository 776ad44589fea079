"""The option `--json` of commands: one JSON object on standard output, and all other output on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout

Answer = Callable[[Mapping[str, object]], None]
"""Takes the result of a command, for JSON."""


@contextmanager
def only_json(asked: bool) -> Generator[Answer, None, None]:
    """
    Write the result that the block gives to the yielded function to standard output, if it is asked for.

    All output of the block, of processes that it starts and of the user's model goes to standard error meanwhile.
    """
    found: list[Mapping[str, object]] = []
    if not asked:
        yield found.append
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield found.append
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    for record in found:
        print(json.dumps(_plain(record), indent=2, allow_nan=False))


def _plain(value: object) -> object:
    """Return a value of JSON; numbers that JSON does not have, such as NaN, become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
