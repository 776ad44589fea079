"""Folders that are replaced atomically: at any time all their files are of one plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.api.files import swap_folder


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_is_created_and_replaced(tmp_path: Path):
    folder = tmp_path / "deep" / "plan"
    swap_folder(folder, {"a": "1", "b": "1", "c": None})
    assert texts(folder) == {"a": "1", "b": "1"}
    swap_folder(folder, {"a": "2", "b": None, "c": "2"})
    assert texts(folder) == {"a": "2", "c": "2"}
    assert [path.name for path in folder.parent.iterdir()] == ["plan"]


def test_other_files_in_the_folder_stay(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    swap_folder(tmp_path, {"a": "1", "b": None})
    assert texts(tmp_path) == {"mine": "mine", "a": "1"}


def test_a_link_to_a_folder_stays_one(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    swap_folder(tmp_path / "link", {"a": "1"})
    assert (tmp_path / "link").is_symlink()
    assert texts(tmp_path / "real") == {"a": "1"}


_KILLED = """
import os, signal, sys
from pathlib import Path
from shardwright.api import files
write, number = files.write_atomically, 0
def dying(path, text):
    global number
    number += 1
    if number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, text)
files.write_atomically = dying
files.swap_folder(Path(sys.argv[1]), {"a": "new", "b": "new"})
"""


@pytest.mark.parametrize("at", [1, 2])
def test_a_killed_writer_leaves_the_folder_unchanged(tmp_path: Path, at: int):
    folder = tmp_path / "plan"
    swap_folder(folder, {"a": "old", "b": "old"})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(folder), str(at)], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert texts(folder) == {"a": "old", "b": "old"}
