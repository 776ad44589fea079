"""
The tensors of a checkpoint: written and read in pieces by torch.distributed.checkpoint.

Nothing that is read can name code: its pickle is read by an unpickler that knows a few classes.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
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
from .local_shard import LocalShard


def save(folder: Path, parts: Mapping[str, LocalShard], ranks: Ranks) -> None:
    """Write this rank's parts; every rank must call this."""
    writer, is_alone = _CheckpointWriter(folder, ranks.turn), ranks.group is None
    options: dict[str, Any] = {"storage_writer": writer, "process_group": ranks.group, "no_dist": is_alone}
    with _own_failure(ranks):
        ranks.wait(lambda: save_tensors(_boxes(parts), **options))


def load(folder: Path, parts: Mapping[str, LocalShard], ranks: Ranks) -> None:
    """Read this rank's parts; every rank must call this."""
    reader, is_alone = _CheckpointReader(folder, ranks.turn), ranks.group is None
    options: dict[str, Any] = {"storage_reader": reader, "process_group": ranks.group, "no_dist": is_alone}
    with _own_failure(ranks):
        ranks.wait(lambda: load_tensors(_boxes(parts), **options))


def described(folder: Path, files: Collection[str]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """
    Shape and dtype of each tensor by its name.

    Args:
        files: the names of the files of the checkpoint.

    Raises:
        CheckpointError: the description is none, or names something that no description has.
    """
    metadata = _CheckpointReader(folder, CheckpointWait()).read_metadata()
    if other := {each.relative_path for each in metadata.storage_data.values()} - set(files):
        raise CheckpointError(f"{METADATA} has tensors in {other.pop()!r:.80}, which is no file of the checkpoint")
    found = metadata.state_dict_metadata
    return {
        name: (tuple(each.size), each.properties.dtype)
        for name, each in found.items()
        if isinstance(each, TensorStorageMetadata)
    }


@contextmanager
def _own_failure(ranks: Ranks) -> Generator[None, None, None]:
    """Inside, each rank raises a CheckpointError with what failed on it, without a text where others failed."""
    with warnings.catch_warnings():
        # It is as it should be that there is no process group.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            # All ranks raise it for what failed on some.
            failure, _ = error.failures.get(ranks.rank, (None, None))
            raise CheckpointError(description(failure) if failure is not None else "") from error


class _Box(torch.Tensor):
    """A part as torch.distributed.checkpoint asks for it: where it lies, and what it holds."""

    part: LocalShard

    def size(self, dim: int | None = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The size of the full tensor, which is compared with what was written."""
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


def _boxes(parts: Mapping[str, LocalShard]) -> dict[str, object]:
    boxes: dict[str, object] = {}
    for name, part in parts.items():
        box = part.local.detach().as_subclass(_Box)
        box.part = part
        boxes[name] = box
    return boxes


class _CheckpointWriter(FileSystemWriter):
    """Says when this rank is at work."""

    def __init__(self, path: Path, turn: CheckpointWait) -> None:
        super().__init__(path, sync_files=True)
        self._turn = turn

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Write this rank's part."""
        with self._turn.of_others(waits=False):
            try:
                return super().write_data(*args, **kwargs)
            except RuntimeError as error:
                # torch fails to end a file that it could not write: on a full disk, say.
                raise error.__context__ if isinstance(error.__context__, OSError) else error


class _CheckpointReader(FileSystemReader):
    """Says when this rank is at work; reads the description of the files without what a pickle can do besides."""

    def __init__(self, path: Path, turn: CheckpointWait) -> None:
        super().__init__(path)
        self._turn = turn

    def read_data(self, *args: Any, **kwargs: Any) -> Any:
        """Read this rank's part."""
        with self._turn.of_others(waits=False):
            return super().read_data(*args, **kwargs)

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """
        The description.

        Raises:
            CheckpointError: it names something that no description has.
        """
        with (Path(self.path) / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, Metadata):
            raise CheckpointError(f"{self.path}/{METADATA} is not the metadata of a checkpoint")
        assert found.storage_meta is not None
        found.storage_meta.load_id = self.load_id
        return found


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
"""The classes in the description of one of our checkpoints."""
