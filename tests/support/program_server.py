"""
A server that runs programs in processes that have their imports already loaded.

The program that `write_client` writes stands for a command: it sends its arguments, environment, folder and open files
to the server, which forks a process that does what the command would. The client passes on the signals that ask it to
end, and ends as that process does; if the client is killed, so is that process.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe, util
from multiprocessing.connection import Connection
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import NoReturn

_NUMBER = struct.Struct("!i")

_CLIENT = """#!{python} -IS
import array, os, signal, socket, struct, sys
{head}
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = [os.getcwd(), str(len(sys.argv)), *sys.argv, *(f"{{n}}={{v}}" for n, v in os.environ.items())]
text = b"\\0".join(map(os.fsencode, words))
files = array.array("i", [0, 1, 2])
server.sendmsg([struct.pack("!i", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(text)
number = lambda: struct.unpack("!i", server.recv(4) or b"\\0\\0\\0\\x46")[0]
program = number()
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(signum) != signal.SIG_IGN:
        signal.signal(signum, lambda given, _: os.kill(program, given))
status = number()
if status < 0:
    if -status in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Listener:
    """The address of a server, which ends with the process that made the listener."""

    def __init__(self) -> None:
        # The path of a socket has at most about 100 characters.
        self._home = tempfile.TemporaryDirectory(prefix="shardwright-programs-")
        self.folder = Path(self._home.name)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(self.folder / "socket"))
        self.socket.listen(64)
        self.alive, self._held = Pipe(duplex=False)
        self._owner = os.getpid()
        atexit.register(self._close)

    def write_client(self, path: Path, head: str = "") -> None:
        """Write an executable client of the server; it runs the Python statements `head` first."""
        path.write_text(_CLIENT.format(python=sys.executable, address=str(self.folder / "socket"), head=head))
        path.chmod(0o755)

    def _close(self) -> None:
        """End the server, but only in the process that made the listener, not in its forks."""
        if os.getpid() == self._owner:
            self._held.close()
            self._home.cleanup()


def serve(listener: socket.socket, alive: Connection, run: Callable[[Sequence[str]], object]) -> None:
    """
    Answer requests until the process with the other end of the pipe `alive` ends.

    Args:
        run: run a command, given its words; it returns or raises as the main program of Python does.
    """
    with DefaultSelector() as files:
        for file in (listener, alive):
            files.register(file, EVENT_READ)
        while alive not in (ready := {key.fileobj: key.data for key, _ in files.select()}):
            for file, data in ready.items():
                if file is listener:
                    connection, _ = listener.accept()
                    program = _fork(connection, run)
                    for each in (connection, os.pidfd_open(program)):
                        files.register(each, EVENT_READ, (program, connection))
                elif file not in files.get_map():
                    continue
                elif isinstance(file, int):
                    program, connection = data
                    files.unregister(file)
                    os.close(file)
                    _send(connection, os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
                    if connection in files.get_map():
                        files.unregister(connection)
                    connection.close()
                else:
                    # A client sends nothing after its request, so it has ended.
                    files.unregister(file)
                    os.kill(data[0], signal.SIGKILL)
        for key in list(files.get_map().values()):
            if isinstance(key.fileobj, int):
                os.kill(key.data[0], signal.SIGKILL)


def _fork(connection: socket.socket, run: Callable[[Sequence[str]], object]) -> int:
    """Start the process of a request, and return its number."""
    size, files, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
    text = b""
    while len(text) < _NUMBER.unpack(size)[0]:
        text += connection.recv(1 << 16)
    if (program := os.fork()) == 0:
        for target, file in enumerate(files):
            os.dup2(file, target)
        _end(_status(list(map(os.fsdecode, text.split(b"\0"))), run))
    for file in files:
        os.close(file)
    _send(connection, program)
    return program


def _send(connection: socket.socket, number: int) -> None:
    with suppress(OSError):
        connection.sendall(_NUMBER.pack(number))


def _status(request: Sequence[str], run: Callable[[Sequence[str]], object]) -> int:
    """Run the command of a request in this process, and return its exit status."""
    folder, count, *words = request
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The streams of the server remember whether its own files can seek.
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    code: object = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update({name: value for name, _, value in (word.partition("=") for word in words[int(count) :])})
        code = run(words[: int(count)])
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
    return code if isinstance(code, int) else int(code is not None)


def _end(status: int) -> NoReturn:
    """End this process as Python does, but not as the process of a server that it was forked from."""
    with suppress(Exception):
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        util._exit_function()  # pyright: ignore[reportAttributeAccessIssue]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = 1
    os._exit(status)
