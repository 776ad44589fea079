"""Writing files and folders atomically."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..ir.text_file import read_text, write_atomically

PLANNED = "step.mlir"
"""The file of a plan's folder with the planned step."""

UNDECIDED = "global.mlir"
"""The file of a plan's folder with the step before any decision."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def swap_folder(folder: Path, texts: Mapping[str, str | None]) -> None:
    """
    Give `folder` files with these texts atomically: a new folder is written next to it and takes its place.

    A folder that contains other files keeps them, and the new files are written one by one, in the order of `texts`.

    Args:
        texts: the texts by file name; a file whose text is None is deleted.
    """
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    present = list(folder.iterdir()) if folder.exists() else []
    if any(each.name not in texts or each.is_dir() for each in present) or folder == Path.cwd():
        _write_into(folder, texts)
        return
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".shardwright-"))
    try:
        replacement = temporary / "made"
        replacement.mkdir()
        _write_into(replacement, texts)
        if folder.exists():
            _exchange(replacement, folder)
        else:
            replacement.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text; a file that belongs to another file stores the digest of that file."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def plan_digest(folder: Path) -> str:
    """Return the digest of the planned step in a plan's folder, or "" if there is none, as in a checkpoint."""
    path = folder / PLANNED
    return text_digest(read_text(path)) if path.exists() else ""


def _write_into(folder: Path, texts: Mapping[str, str | None]) -> None:
    for name, text in texts.items():
        path = folder / name
        # Replace a link itself: its target does not belong to the plan.
        if text is None or path.is_symlink():
            path.unlink(missing_ok=True)
        if text is not None:
            write_atomically(path, text)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders of one file system, atomically if the system supports it."""
    if sys.platform == "linux":
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is not None and not rename(
            _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
        ):
            return
    away = one.with_name("away")
    other.rename(away)
    one.rename(other)
    away.rename(one)
