"""
A server that runs the commands of the FileCheck tests with their imports already loaded.

`lit` starts some 700 short commands, and each would import the package anew. `start` puts programs of the same names
into a folder: each sends its arguments, environment, folder and open files to the server, which forks a process
that runs the command. The server ends with the process that started it.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NoReturn

TOOLS = {"filecheck": "filecheck.main:main", "opt-tool": "shardwright.tools.opt_tool:main"}
"""The entry point of each command, as in the metadata of its package."""

_LENGTH = struct.Struct("!I")

_CLIENT = """#!{python} -IS
import array, os, socket, struct, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = [os.getcwd(), str(len(sys.argv)), *sys.argv, *(f"{{n}}={{v}}" for n, v in os.environ.items())]
text = b"\\0".join(map(os.fsencode, words))
files = array.array("i", [0, 1, 2])
server.sendmsg([struct.pack("!I", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(text)
answer = server.recv(4)
sys.exit(struct.unpack("!i", answer)[0] if len(answer) == 4 else 70)
"""


def start(folder: Path) -> None:
    """Start a server, and put a program for each of its commands into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # The path of a socket has at most about 100 characters, so the socket is not in `folder`.
    home = tempfile.TemporaryDirectory(prefix="shardwright-tools-")
    address = str(Path(home.name, "socket"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    for name in TOOLS:
        program = folder / name
        program.write_text(_CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o755)
    alive, held = os.pipe()
    command = [sys.executable, __file__, str(listener.fileno()), str(alive)]
    server = subprocess.Popen(command, pass_fds=(listener.fileno(), alive), start_new_session=True)
    os.close(alive)
    listener.close()
    atexit.register(_stop, server, held, home, os.getpid())


def _stop(server: subprocess.Popen[bytes], held: int, home: tempfile.TemporaryDirectory[str], owner: int) -> None:
    """End the server, but only in the process that started it, not in its forks."""
    if os.getpid() == owner:
        os.close(held)
        server.terminate()
        server.wait(10)
        home.cleanup()


def _serve(listener: socket.socket, alive: int) -> None:
    """Answer requests until the process with the other end of a pipe ends."""
    from select import select

    from shardwright.passes.registry import our_passes

    mains: dict[str, Callable[[], object]] = {}
    for name, entry in TOOLS.items():
        module, _, function = entry.partition(":")
        mains[name] = getattr(import_module(module), function)
    for load in our_passes().values():
        load()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while alive not in (ready := select([listener, alive], [], [])[0]):
        if ready:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection, mains)
            connection.close()


def _answer(connection: socket.socket, mains: Mapping[str, Callable[[], object]]) -> NoReturn:
    """Run one command in this forked process, and send its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    text = b""
    while len(text) < _LENGTH.unpack(size)[0]:
        text += connection.recv(1 << 16)
    words = list(map(os.fsdecode, text.split(b"\0")))
    folder, count, *words = words
    arguments, environment = words[: int(count)], words[int(count) :]
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    # The streams of the server remember whether its own files can seek.
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update({name: value for name, _, value in (entry.partition("=") for entry in environment)})
    name = Path(arguments[0]).name
    sys.argv = [name, *arguments[1:]]
    status = 1
    try:
        found = mains[name]()
        status = found if isinstance(found, int) else 0 if found is None else 1
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                status = 1
        connection.sendall(struct.pack("!i", status))
        os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
