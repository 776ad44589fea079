"""
A server that runs the commands of the FileCheck tests with their imports already loaded.

`lit` starts some 700 short commands, and each would import the package anew. `start` puts programs of the same names
into a folder, which let the server run the commands. The server ends with the process that started it.
"""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from program_server import Listener, serve

TOOLS = {"filecheck": "filecheck.main:main", "opt-tool": "shardwright.tools.opt_tool:main"}
"""The entry point of each command, as in the metadata of its package."""


def start(folder: Path) -> None:
    """Start a server, and put a program for each of its commands into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    listener = Listener()
    for name in TOOLS:
        listener.write_client(folder / name)
    files = listener.socket.fileno(), listener.alive.fileno()
    subprocess.Popen([sys.executable, __file__, *map(str, files)], pass_fds=files, start_new_session=True)
    listener.socket.close()
    listener.alive.close()


def _serve(listener: int, alive: int) -> None:
    """Answer requests until the process with the other end of a pipe ends."""
    from shardwright.passes.registry import our_passes

    mains: dict[str, Callable[[], object]] = {}
    for name, entry in TOOLS.items():
        module, _, main = entry.partition(":")
        mains[name] = getattr(import_module(module), main)
    for load in our_passes().values():
        load()
    gc.freeze()

    def run(words: Sequence[str]) -> object:
        sys.argv = [Path(words[0]).name, *words[1:]]
        return mains[sys.argv[0]]()

    serve(socket.socket(fileno=listener), Connection(alive, writable=False), run)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
