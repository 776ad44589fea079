"""
Checkpoints: folders with what a step holds, under single-device names, written by all ranks, atomically.

    runs/step-00000042/manifest.json     what is in the folder: sizes and SHA-256 of its files, and what is no tensor
    runs/step-00000042/.metadata, *.distcp     tensors, by torch.distributed.checkpoint
    runs/step-00000042/extra.pt          what the user adds, read with `weights_only`

A checkpoint is written under another name, and renamed when every rank has written and flushed its files. Nothing that
is read can name code: the pickle of torch.distributed.checkpoint is read by an unpickler that knows a few classes.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from .checkpoint_ranks import CheckpointError, Ranks, Turn
from .local_shard import LocalShard

LOG = logging.getLogger("shardwright")

VERSION = 1
"""Of the form of the manifest."""

MANIFEST, EXTRA, _METADATA = "manifest.json", "extra.pt", ".metadata"
_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Notes:
    """
    What a checkpoint has besides tensors.

    Args:
        step: how many steps were made.
        seed: from which the random numbers of steps are drawn.
        rates: the learning rates, by group of parameters.
        loaders: the positions of the loaders that the step made, in their order.
    """

    step: int
    seed: int
    rates: tuple[float, ...] = ()
    loaders: tuple[Mapping[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Of the checkpoint's folder."""
        return f"step-{self.step:08d}"


def packed(extra: object) -> bytes:
    """
    What the user adds, as it is written.

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
        folder: on a disk that all ranks share.
        parts: by name; what several ranks hold alike is written once.
        given: other files by name, what the user adds among them; those of rank 0 are written.
        keep: how many checkpoints stay, the newest; None: all.

    Raises:
        CheckpointError: on all ranks; then no checkpoint of this step is there.
    """
    name = notes.name
    unfinished = folder / f".{name}{_UNFINISHED}"
    is_first = ranks.rank == 0

    def begin() -> None:
        if is_first:
            for left in folder.glob(f".*{_UNFINISHED}"):
                shutil.rmtree(left)
            unfinished.mkdir(parents=True)

    def tensors() -> dict[str, list[Any]]:
        writer, is_alone = _CheckpointWriter(unfinished, ranks.turn), ranks.group is None
        options: dict[str, Any] = {"storage_writer": writer, "process_group": ranks.group, "no_dist": is_alone}
        with _alone_without_warning():
            ranks.wait(lambda: save_tensors(_boxes(parts), **options))
        mine = sorted(unfinished.glob(f"__{ranks.rank}_*"))
        if is_first:
            mine += [*_written(unfinished, given), unfinished / _METADATA]
        return {path.name: [path.stat().st_size, _digest(path)] for path in mine}

    def commit(files: Mapping[str, list[Any]]) -> None:
        if not is_first:
            return
        details = {"version": VERSION, "step": notes.step, "seed": notes.seed, "rates": notes.rates}
        manifest = {**details, "loaders": notes.loaders, "files": files, "sha256": ""}
        manifest["sha256"] = _text_digest(manifest)
        text = json.dumps(manifest, indent=1)
        _write_file(unfinished / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))
        if (folder / name).exists():
            _remove(folder / name)
        _flush(unfinished)
        unfinished.rename(folder / name)
        _flush(folder)
        for old in checkpoints(folder)[keep:] if keep is not None else ():
            _remove(folder / old)

    ranks.agree(begin)
    written = ranks.gather(ranks.agree(tensors))
    ranks.agree(lambda: commit({name: entry for each in written for name, entry in each.items()}))
    return folder / name


def _remove(checkpoint: Path) -> None:
    """Delete a checkpoint: first its name, so that none is ever there in part."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.old{_UNFINISHED}")
    checkpoint.rename(hidden)
    shutil.rmtree(hidden)


def checkpoints(folder: Path) -> list[str]:
    """The names of the checkpoints in a folder, the newest first."""
    found = (path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else ()
    return sorted(found, key=lambda name: int(name.removeprefix("step-")), reverse=True)


@dataclass(frozen=True)
class Whole:
    """A checkpoint whose files are as they were written."""

    path: Path
    notes: Notes
    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    extra: Any = field(repr=False)


def newest_whole(folder: Path, ranks: Ranks) -> Whole | None:
    """
    The newest checkpoint of which no file is missing or changed; every rank must call this.

    Raises:
        CheckpointError: there are checkpoints, and none is whole.
    """
    (names, *_) = ranks.gather(checkpoints(folder) if ranks.rank == 0 else [], patient="")
    faults: list[str] = []
    for name in names:
        found = ranks.gather(_fault(folder / name, ranks))
        fault = next(filter(None, found), "")
        if not fault:
            return ranks.agree(partial(_whole, folder / name))
        faults.append(f"{folder / name}: {fault}")
        if ranks.rank == 0:
            LOG.warning("%s; falling back to the previous checkpoint", faults[-1])
    if faults:
        raise CheckpointError(f"no checkpoint is complete: {'; '.join(faults)}")
    return None


def read(whole: Whole, parts: Mapping[str, LocalShard], ranks: Ranks) -> None:
    """
    Read this rank's parts, which may lie otherwise than those that were written; every rank must call this.

    Raises:
        CheckpointError: on all ranks; the parts may have been changed.
    """

    def tensors() -> None:
        with _alone_without_warning():
            reader, is_alone = _CheckpointReader(whole.path, ranks.turn), ranks.group is None
            given: dict[str, Any] = {"storage_reader": reader, "process_group": ranks.group, "no_dist": is_alone}
            ranks.wait(lambda: load_tensors(_boxes(parts), **given))

    ranks.agree(tensors)


def _whole(path: Path) -> Whole:
    manifest = _manifest(path)
    notes = Notes(
        manifest["step"], manifest["seed"], tuple(manifest["rates"]), tuple(manifest["loaders"])
    )
    described = _CheckpointReader(path, Turn()).read_metadata().state_dict_metadata
    tensors = {
        name: (tuple(each.size), each.properties.dtype)
        for name, each in described.items()
        if isinstance(each, TensorStorageMetadata)
    }
    return Whole(path, notes, tensors, torch.load(path / EXTRA, weights_only=True))


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest; CheckpointError where it is not as it was written."""
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if found["sha256"] != _text_digest({**found, "sha256": ""}):
            raise CheckpointError(f"{MANIFEST} was changed after it was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error}") from error
    if found["version"] != VERSION:
        raise CheckpointError(f"{MANIFEST} has version {found['version']}, this software reads {VERSION}")
    return found


def _fault(path: Path, ranks: Ranks) -> str:
    """What is wrong with a checkpoint, as far as this rank looks; empty where nothing is."""
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
    except (AttributeError, TypeError, ValueError) as error:
        return f"{MANIFEST} is no manifest of a checkpoint: {error}"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text_digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Files, by name, on the disk."""
    for name, content in files.items():
        _write_file(folder / name, lambda path: path.write_bytes(content))
    return [folder / name for name in files]


def _write_file(path: Path, make: Callable[[Path], object]) -> None:
    """Write a file, and have it on the disk."""
    make(path)
    _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _alone_without_warning() -> Generator[None, None, None]:
    """torch.distributed.checkpoint warns where there is no process group, which is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


class _Box(torch.Tensor):
    """A part as torch.distributed.checkpoint asks for it: where it lies, and what it holds."""

    part: LocalShard

    def size(self, dim: int | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of the whole: it is compared with what was written."""
        whole = torch.Size(_sizes(self.part.shape))
        return whole if dim is None else whole[dim]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        if not self.part.local.numel():
            return []
        (chunk,) = self.__create_chunk_list__()
        properties = TensorProperties.create_from_tensor(self.part.local)
        described = TensorWriteData(chunk, properties, torch.Size(_sizes(self.part.shape)))
        return [WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=described)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        if not self.part.local.numel():
            return []
        sizes = _sizes(tuple(self.part.local.shape))
        return [ChunkStorageMetadata(torch.Size(self.part.offsets or (0,)), torch.Size(sizes))]

    def __get_tensor_shard__(self, _: MetadataIndex) -> torch.Tensor:
        return self.part.local.view(_sizes(tuple(self.part.local.shape)))


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of one dim at least: a number is written as a vector of one."""
    return shape or (1,)


def _boxes(parts: Mapping[str, LocalShard]) -> dict[str, Any]:
    boxes: dict[str, Any] = {}
    for name, part in parts.items():
        box = part.local.detach().as_subclass(_Box)
        box.part = part
        boxes[name] = box
    return boxes


class _CheckpointWriter(FileSystemWriter):
    """Says when this rank is at work."""

    def __init__(self, path: Path, turn: Turn) -> None:
        super().__init__(path, sync_files=True)
        self._turn = turn

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Write this rank's part."""
        with self._turn.of_others(waits=False):
            return super().write_data(*args, **kwargs)


class _CheckpointReader(FileSystemReader):
    """Says when this rank is at work; reads the description of the files without what a pickle can do besides."""

    def __init__(self, path: Path, turn: Turn) -> None:
        super().__init__(path)
        self._turn = turn

    def read_data(self, *args: Any, **kwargs: Any) -> Any:
        """Read this rank's part."""
        with self._turn.of_others(waits=False):
            return super().read_data(*args, **kwargs)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """
        The description.

        Raises:
            CheckpointError: it names something that no description has.
        """
        with (Path(self.path) / _METADATA).open("rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, Metadata):
            raise CheckpointError(f"{self.path}/{_METADATA} is not the metadata of a checkpoint")
        assert found.storage_meta is not None
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise CheckpointError(f"{_METADATA} refers to {module}.{name}, which no checkpoint contains")


_DESCRIBED = (
    "Metadata",
    "MetadataIndex",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)
_KNOWN: Sequence[tuple[str, str]] = (
    *(("torch.distributed.checkpoint.metadata", name) for name in _DESCRIBED),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
)
"""What the description of a checkpoint of ours is made of."""
