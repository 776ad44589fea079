"""Checkpoints of one rank: a checkpoint is loaded as it was written, or an older one is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.runtime.checkpoint import Notes, checkpoints, newest_whole, packed, write
from shardwright.runtime.checkpoint_ranks import CheckpointError, Ranks
from shardwright.runtime.plan import LocalShard

ALONE = Ranks(None)


def save(folder: Path, step: int, keep: int | None = 2) -> Path:
    parts = {"model.w": LocalShard(torch.arange(6.0).view(2, 3), (2, 3), (0, 0))}
    notes = Notes(step, 0, (0.1,), ({"epoch": 1, "batch": 2},))
    return write(folder, parts, notes, {"extra.pt": packed(None)}, keep, ALONE)


def signed(manifest: dict[str, Any]) -> str:
    text = json.dumps({**manifest, "sha256": ""}, sort_keys=True)
    return json.dumps({**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def _field(**changed: Any) -> Callable[[Path], object]:
    """Change fields of a manifest and update its digest."""

    def change(path: Path) -> None:
        path.write_text(signed({**json.loads(path.read_text()), **changed}))

    return change


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: (path.unlink(), make(path))


def _file(name: str, content: bytes) -> Callable[[Path], object]:
    """Replace a file of the checkpoint and update the manifest."""

    def change(path: Path) -> None:
        path.with_name(name).write_bytes(content)
        manifest = json.loads(path.read_text())
        manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
        path.write_text(signed(manifest))

    return change


def _elsewhere(path: Path) -> None:
    content = path.with_name(".metadata").read_bytes()
    _file(".metadata", content.replace(b"__0_0.distcp", b"/x/x0.distcp"))(path)


FILES = {"extra.pt": [1, "0"], ".metadata": [1, "0"]}
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (_replaced(os.mkfifo), "manifest.json cannot be read: .* Is a pipe, expected a file"),
    "endless": (_replaced(lambda path: path.symlink_to("/dev/zero")), "Is a device, expected a file"),
    "a folder": (_replaced(Path.mkdir), "Is a directory, expected a file"),
    "too large": (lambda path: path.write_bytes(b" " * 2**24 + b"{}"), "Is larger than 16777216 bytes"),
    "deep": (lambda path: path.write_text('{"sha256": ' + "[" * 100_000 + "]" * 100_000 + "}"), "recursion"),
    "a list": (lambda path: path.write_text("[]"), "manifest.json cannot be read: list indices"),
    "version": (_field(version=2), "version is 2, expected a whole number from 1 to 1"),
    "step below 0": (_field(step=-1), "step is -1, expected a whole number from 0 to"),
    "step true": (_field(step=True), "step is True, expected"),
    "step of another": (_field(step=7), "step is 7, but the folder is step-00000004"),
    "seed": (_field(seed="x"), "seed is 'x', expected a whole number from -9223372036854775808"),
    "seed beyond": (_field(seed=2**64), "seed is 18446744073709551616, expected"),
    "rate": (_field(rates=[float("nan")]), "rates.0. is nan, expected a number"),
    "rates": (_field(rates={"a": 1}), "rates is {'a': 1}, expected a list"),
    "loaders": (_field(loaders=[{"epoch": 1}]), "loaders.0. has no 'batch'"),
    "position": (
        _field(loaders=[{"epoch": 1, "batch": 1e9}]),
        "loaders.0..batch is 1000000000.0, expected a",
    ),
    "no files": (_field(files={}), "files has no 'extra.pt'"),
    "a file elsewhere": (_field(files={**FILES, "../.metadata": [1, "0"]}), ".metadata has .* bytes, 1 were written"),
    "a size": (
        _field(files={**FILES, "x": [-1, "0"]}),
        "files.x.0. is -1, expected a whole number from 0 to .* or text",
    ),
    "a size alone": (_field(files={**FILES, ".metadata": [1]}), "files has something else than sizes and SHA-256"),
    "tensors elsewhere": (_elsewhere, ".metadata has tensors in '/x/x0.distcp', which is no file of the checkpoint"),
    "no metadata": (_file(".metadata", b"I1\n."), ".metadata is not the metadata of a checkpoint"),
    "metadata": (_file(".metadata", b"cos\nsystem\n."), ".metadata refers to os.system, which no checkpoint"),
    "extra": (_file("extra.pt", b"PK"), "extra.pt cannot be read: "),
}
"""By fault of the manifest: the function that makes it, and the message."""


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_manifest_is_reported_and_the_previous_checkpoint_is_loaded(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    save(tmp_path, 3)
    change, told = WRONG[name]
    change(save(tmp_path, 4) / "manifest.json")
    found = newest_whole(tmp_path, ALONE)
    assert found is not None
    assert (found.notes.step, found.notes.loaders) == (3, [{"epoch": 1, "batch": 2}])
    (line,) = (record.getMessage() for record in caplog.records if record.name == "shardwright")
    assert re.search(f"step-00000004: .*{told}.*; falling back to the previous checkpoint", line), line


def test_links_among_checkpoints_are_deleted_but_not_their_targets(tmp_path: Path):
    elsewhere = save(tmp_path / "disk", 1)
    link = tmp_path / "runs"
    link.symlink_to(tmp_path / "disk")
    other = tmp_path / "other"
    other.mkdir()
    (other / elsewhere.name).symlink_to(elsewhere)
    (other / "step-00000002").symlink_to("nowhere")
    (other / ".step-00000003.unfinished").symlink_to(elsewhere)
    (other / "step-00000003").write_text("a file")
    for step in (2, 3, 4):
        save(other, step)
    assert checkpoints(other) == ["step-00000004", "step-00000003"]
    assert sorted(each.name for each in other.iterdir()) == ["step-00000003", "step-00000004"]
    save(link, 2, keep=1)
    assert checkpoints(tmp_path / "disk") == ["step-00000002"]


def test_a_value_that_could_not_be_read_back_is_not_written(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"manifest.json: rates.0. is nan, expected a number"):
        write(tmp_path, {}, Notes(1, 0, (float("nan"),)), {"extra.pt": packed(None)}, 2, ALONE)
    assert checkpoints(tmp_path) == []


def test_a_full_disk_is_reported(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"^OSError: \[Errno 27\] File too large"):
            save(tmp_path, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert checkpoints(tmp_path) == []
    save(tmp_path, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["step-00000001"]
