"""
The tensors of a checkpoint: written and read in pieces by torch.distributed.checkpoint.

No file of a checkpoint can name code to run: a restricted unpickler reads the pickle and accepts only a few classes.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
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

from .checkpoint_ranks import METADATA, CheckpointError, CheckpointWait, Ranks, description
from .plan import LocalShard


def save(folder: Path, parts: Mapping[str, LocalShard], ranks: Ranks) -> None:
    """Write this rank's parts; every rank must call this."""
    _together(save_tensors, parts, ranks, storage_writer=_CheckpointWriter(folder, ranks.turn))


def load(folder: Path, parts: Mapping[str, LocalShard], ranks: Ranks) -> None:
    """Read this rank's parts; every rank must call this."""
    _together(load_tensors, parts, ranks, storage_reader=_CheckpointReader(folder, ranks.turn))


def _together(run: Callable[..., object], parts: Mapping[str, LocalShard], ranks: Ranks, **storage: object) -> None:
    """Write or read with all ranks; raise a CheckpointError that is empty if only other ranks failed."""
    options = {"process_group": ranks.group, "no_dist": ranks.group is None, **storage}
    with warnings.catch_warnings():
        # A single process has no process group, and torch would warn of its absence.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            ranks.wait(lambda: run(_boxes(parts), **options))
        except CheckpointException as error:
            # All ranks raise this exception, even a rank that did not fail.
            failure, _ = error.failures.get(ranks.rank, (None, None))
            raise CheckpointError(description(failure) if failure is not None else "") from error


def described(folder: Path, files: Collection[str]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """
    Return shape and dtype of each tensor by its name.

    Raises:
        CheckpointError: the metadata is malformed, or names a file or class that no checkpoint contains.
    """
    metadata = _CheckpointReader(folder, CheckpointWait()).read_metadata()
    if other := {stored.relative_path for stored in metadata.storage_data.values()} - set(files):
        raise CheckpointError(f"{METADATA} has tensors in {other.pop()!r:.80}, which is no file of the checkpoint")
    entries = metadata.state_dict_metadata
    return {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }


class _Box(torch.Tensor):
    """A part in the form that torch.distributed.checkpoint asks for: its data, and its place in the full tensor."""

    part: LocalShard

    def size(self, dim: int | None = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the size of the full tensor, which torch compares with the size in the checkpoint."""
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
    """Return a shape with at least one dim: a scalar is written as a vector of one element."""
    return shape or (1,)


def _boxes(parts: Mapping[str, LocalShard]) -> dict[str, object]:
    boxes: dict[str, object] = {}
    for name, part in parts.items():
        box = part.local.detach().as_subclass(_Box)
        box.part = part
        boxes[name] = box
    return boxes


class _CheckpointWriter(FileSystemWriter):
    """A writer that tells the watch when this rank is at work."""

    def __init__(self, path: Path, turn: CheckpointWait) -> None:
        super().__init__(path, sync_files=True)
        self._turn = turn

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        with self._turn.of_others(waits=False):
            try:
                return super().write_data(*args, **kwargs)
            except RuntimeError as error:
                # After a failed write, for example on a full disk, torch fails again when it closes the file.
                raise error.__context__ if isinstance(error.__context__, OSError) else error


class _CheckpointReader(FileSystemReader):
    """A reader that tells the watch when this rank is at work, and reads the metadata with the restricted unpickler."""

    def __init__(self, path: Path, turn: CheckpointWait) -> None:
        super().__init__(path)
        self._turn = turn

    def read_data(self, *args: Any, **kwargs: Any) -> Any:
        with self._turn.of_others(waits=False):
            return super().read_data(*args, **kwargs)

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """
        Read the metadata of the checkpoint with the restricted unpickler.

        Raises:
            CheckpointError: the file is not metadata, or names a class outside `_KNOWN`.
        """
        with (Path(self.path) / METADATA).open("rb") as file:
            metadata = _Unpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{self.path}/{METADATA} is not the metadata of a checkpoint")
        assert metadata.storage_meta is not None
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _KNOWN or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise CheckpointError(f"{METADATA} refers to {module}.{name}, which no checkpoint contains")


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
"""The classes in the metadata of a checkpoint that this package wrote."""
