"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

UNDECIDED = "global.mlir"
"""The file of a plan's folder with the step before any decision."""


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a temporary file beside it, so that nothing half-written is ever seen."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
