"""
Checkpoints: folders with the state of a step, under single-device names, written by all ranks, atomically.

    runs/step-00000042/manifest.json     the sizes and SHA-256 of the files, and the data other than tensors
    runs/step-00000042/.metadata, *.distcp     tensors, by torch.distributed.checkpoint
    runs/step-00000042/extra.pt          the user's additions, read with `weights_only`

A checkpoint is written under another name, and renamed when every rank has written and flushed its files. No file of
a checkpoint can name code to run. `checkpoint_tensors` imports torch.distributed.checkpoint and is itself imported on
first use: a process that starts without it starts a second sooner.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..ir.json_shape import COUNT, NUMBER, Shape, fault_of
from ..ir.text_file import read_text
from .checkpoint_ranks import METADATA, CheckpointError, Ranks, description
from .plan import LocalShard

Read = TypeVar("Read")

LOG = logging.getLogger("shardwright")

VERSION = 1

MANIFEST, EXTRA = "manifest.json", "extra.pt"
_MOST_BYTES = 2**24
"""An upper bound on the size of a manifest, which has a line or two for each rank."""

_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Notes:
    """
    The contents of a checkpoint other than tensors.

    Args:
        step: the number of finished steps.
        seed: seed of the random numbers of all steps.
        rates: the learning rates, by group of parameters.
        loaders: the positions of the step's loaders, in the order of their creation.
    """

    step: int
    seed: int
    rates: Sequence[float] = ()
    loaders: Sequence[Mapping[str, int]] = ()

    @property
    def name(self) -> str:
        """The name of the checkpoint's folder."""
        return f"step-{self.step:08d}"


def packed(extra: object) -> bytes:
    """
    Return the user's additions as the bytes of a file.

    Raises:
        CheckpointError: `torch.load(weights_only=True)` could not read it.
    """
    file = io.BytesIO()
    try:
        torch.save(extra, file)
        torch.load(io.BytesIO(file.getbuffer()), weights_only=True)
    except Exception as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"save() was given extra={type(extra).__name__}, which holds something other than numbers, strings, "
            f"tensors, lists and dicts ({what}); pass plain data that describes it, such as its state_dict()"
        ) from error
    return file.getvalue()


def write(
    folder: Path,
    parts: Mapping[str, LocalShard],
    notes: Notes,
    given: Mapping[str, bytes],
    keep: int | None,
    ranks: Ranks,
) -> Path:
    """
    Write a checkpoint; every rank must call this.

    Args:
        folder: a folder on a disk that all ranks share.
        parts: this rank's parts by name; a part that several ranks hold is written once.
        given: other files by name, including the user's additions; only the files of rank 0 are written.
        keep: the number of checkpoints to keep, the newest ones; all if None.

    Raises:
        CheckpointError: on all ranks; then no checkpoint of this step exists.
    """
    name = notes.name
    unfinished = folder / f".{name}{_UNFINISHED}"
    is_first = ranks.rank == 0

    def begin() -> None:
        if is_first:
            for leftover in folder.glob(f".*{_UNFINISHED}"):
                _delete(leftover)
            unfinished.mkdir(parents=True)

    def tensors() -> dict[str, list[object]]:
        from .checkpoint_tensors import save

        save(unfinished, parts, ranks)
        mine = sorted(unfinished.glob(f"__{ranks.rank}_*"))
        if is_first:
            for name, content in given.items():
                _write_file(unfinished / name, content)
            mine += [*(unfinished / name for name in given), unfinished / METADATA]
        return {path.name: [path.stat().st_size, _digest(path)] for path in mine}

    def commit(files: Mapping[str, list[object]]) -> None:
        if not is_first:
            return
        manifest = {"version": VERSION, **asdict(notes), "files": files, "sha256": ""}
        text = json.dumps({**manifest, "sha256": _text_digest(manifest)}, indent=1)
        _verified(json.loads(text))
        _write_file(unfinished / MANIFEST, text.encode())
        if os.path.lexists(folder / name):
            _remove(folder / name)
        _flush(unfinished)
        unfinished.rename(folder / name)
        _flush(folder)
        for old in checkpoints(folder)[keep:] if keep is not None else ():
            _remove(folder / old)

    ranks.agree(begin)
    written = ranks.gather(ranks.agree(tensors))
    ranks.agree(lambda: commit({name: entry for files in written for name, entry in files.items()}))
    return folder / name


def _remove(checkpoint: Path) -> None:
    """Rename a checkpoint and then delete it, so that no partial checkpoint ever has its name."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.old{_UNFINISHED}")
    checkpoint.rename(hidden)
    _delete(hidden)


def _delete(path: Path) -> None:
    """Delete a folder, or a link to a folder but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def checkpoints(folder: Path) -> list[str]:
    """Return the names of the checkpoints in a folder, the newest first."""
    names = (path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else ()
    return sorted(names, key=lambda name: int(name.removeprefix("step-")), reverse=True)


@dataclass(frozen=True)
class CompleteCheckpoint:
    """A checkpoint whose files are unchanged since they were written."""

    path: Path
    notes: Notes
    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    extra: Any = field(repr=False)


def newest_whole(folder: Path, ranks: Ranks) -> CompleteCheckpoint | None:
    """
    Return the newest checkpoint with no missing or changed file; every rank must call this.

    Raises:
        CheckpointError: checkpoints exist, and none is intact.
    """
    (names, *_) = ranks.gather(checkpoints(folder) if ranks.rank == 0 else [], patient="")
    faults: list[str] = []
    for name in names:
        faults_of_ranks = ranks.gather(_fault(folder / name, ranks))
        fault = next(filter(None, faults_of_ranks), "")
        if not fault:
            try:
                return ranks.agree(partial(_whole, folder / name))
            except CheckpointError as error:
                fault = str(error)
        faults.append(f"{folder / name}: {fault}")
        if ranks.rank == 0:
            LOG.warning("%s; falling back to the previous checkpoint", faults[-1])
    if faults:
        raise CheckpointError(f"no checkpoint is complete: {'; '.join(faults)}")
    return None


def read(whole: CompleteCheckpoint, parts: Mapping[str, LocalShard], ranks: Ranks) -> None:
    """
    Read this rank's parts, which may be split differently from the written parts; every rank must call this.

    Raises:
        CheckpointError: on all ranks; the parts may have been changed.
    """

    def tensors() -> None:
        from .checkpoint_tensors import load

        load(whole.path, parts, ranks)

    ranks.agree(tensors)


def _whole(path: Path) -> CompleteCheckpoint:
    from .checkpoint_tensors import described

    manifest = _manifest(path)
    notes = Notes(*(manifest[name] for name in ("step", "seed", "rates", "loaders")))
    tensors = _content(METADATA, lambda: described(path, manifest["files"]))
    return CompleteCheckpoint(
        path, notes, tensors, _content(EXTRA, lambda: torch.load(path / EXTRA, weights_only=True))
    )


def _content(name: str, read: Callable[[], Read]) -> Read:
    try:
        return read()
    except CheckpointError:
        raise
    # A forged pickle can raise anything.
    except Exception as error:
        raise CheckpointError(f"{name} cannot be read: {description(error).splitlines()[0]}") from error


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest; raise a CheckpointError if it was changed or a field of it is wrong."""
    try:
        manifest = json.loads(read_text(path / MANIFEST, _MOST_BYTES))
        if manifest["sha256"] != _text_digest({**manifest, "sha256": ""}):
            raise CheckpointError(f"{MANIFEST} was changed after it was written")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error}") from error
    if (step := _verified(manifest)["step"]) != int(path.name.removeprefix("step-")):
        raise CheckpointError(f"{MANIFEST}: step is {step}, but the folder is {path.name}")
    return manifest


def _verified(manifest: Any) -> Mapping[str, Any]:
    """Return a manifest after a check of its fields; raise a CheckpointError that names a wrong field."""
    if fault := fault_of(manifest, _FIELDS):
        raise CheckpointError(f"{MANIFEST}: {fault}")
    return manifest


_FILE: Shape = [(COUNT, str)]
_FIELDS: Shape = {
    "version": range(VERSION, VERSION + 1),
    "step": COUNT,
    "seed": range(-(2**63), 2**64),
    "rates": [NUMBER],
    "loaders": [{"epoch": COUNT, "batch": COUNT}],
    "files": {EXTRA: _FILE, METADATA: _FILE, "*": _FILE},
    "sha256": str,
}
"""The fields of a manifest; a file has its size and SHA-256."""


def _fault(path: Path, ranks: Ranks) -> str:
    """Return the fault in this rank's share of the files of a checkpoint; empty if there is none."""
    try:
        files = sorted(_manifest(path)["files"].items())
        for name, (size, digest) in files[ranks.rank :: ranks.count]:
            file = path / Path(name).name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, {size} were written"
            if _digest(file) != digest:
                return f"{name} is not what was written: its SHA-256 differs"
    except (CheckpointError, OSError) as error:
        return str(error)
    except ValueError as error:
        return f"{MANIFEST}: files has something else than sizes and SHA-256: {error}"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text_digest(manifest: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
