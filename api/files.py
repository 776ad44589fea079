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
    Make `folder` one with files of these texts: it is written beside it, and takes its place at once.

    A folder that has files of other names keeps them, and gets these one by one, the last of them last.

    Args:
        texts: by name of the file; None for one that is not to be there.
    """
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    there = list(folder.iterdir()) if folder.exists() else []
    if any(each.name not in texts or each.is_dir() for each in there) or folder == Path.cwd():
        _write_into(folder, texts)
        return
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".shardwright-"))
    try:
        made = beside / "made"
        made.mkdir()
        _write_into(made, texts)
        if folder.exists():
            _exchange(made, folder)
        else:
            made.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def text_digest(text: str) -> str:
    """SHA-256 of a text, by which a file can name another that it belongs to."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def plan_digest(folder: Path) -> str:
    """That of the planned step in a plan's folder; empty where there is none, as in a checkpoint."""
    path = folder / PLANNED
    return text_digest(read_text(path)) if path.exists() else ""


def _write_into(folder: Path, texts: Mapping[str, str | None]) -> None:
    for name, text in texts.items():
        path = folder / name
        # What a link in the folder points to is not the plan's.
        if text is None or path.is_symlink():
            path.unlink(missing_ok=True)
        if text is not None:
            write_atomically(path, text)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders of one file system take each other's place; at once, where the system can do that."""
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
