"""Writing files, and folders of them, whole or not at all."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

UNDECIDED = "global.mlir"
"""The file of a plan's folder with the step before any decision."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


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


def swap_folder(folder: Path, texts: Mapping[str, str | None]) -> None:
    """
    Make `folder` one with files of these texts: it is written beside it, and takes its place at once.

    A folder that has files of other names keeps them, and gets these one by one, the last of them last.

    Args:
        texts: by name of the file; None for one that is not to be there.
    """
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    there = {each.name for each in folder.iterdir()} if folder.exists() else set[str]()
    if there - texts.keys() or folder == Path.cwd():
        _write_into(folder, texts)
        return
    made = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        _write_into(made, texts)
        if folder.exists():
            _exchange(made, folder)
        else:
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_into(folder: Path, texts: Mapping[str, str | None]) -> None:
    for name, text in texts.items():
        if text is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomically(folder / name, text)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders of one file system take each other's place; at once, where the system can do that."""
    if sys.platform == "linux":
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is not None and not rename(
            _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
        ):
            return
    away = other.with_name(f"{one.name}.old")
    other.rename(away)
    one.rename(other)
    away.rename(one)
