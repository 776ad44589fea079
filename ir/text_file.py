"""
Files whose names come from users, who may name a pipe, a folder or a binary file.

What is read is a file, of a bounded size: a pipe must not hang. What is written appears completely or not at all, where
a file stands or nothing; what a link points to is written and the link stays, and a device is written to, not replaced.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

MOST_BYTES = 2**30
"""Of a file of text, unless the reader says otherwise: a gibibyte."""

_PIECE = 2**20

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """
    The bytes of a regular file, or of what a link to one points to.

    Args:
        most: bytes that are read.

    Raises:
        OSError: there is none, it is something else (which is not waited for), or larger; `strerror` says which.
    """
    # A pipe that nobody writes to would block, and a device may act on being opened at all.
    _check_regular(os.stat(path), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        _check_regular(found, path)
        # Files of /proc say that they have no bytes. A read takes memory for all that it is asked for.
        data = bytearray()
        while found.st_size <= most and len(data) <= most and (piece := file.read(_PIECE)):
            data += piece
        if len(data) > most or found.st_size > most:
            raise OSError(errno.EFBIG, f"Is larger than {most} bytes", str(path))
    return bytes(data)


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    """The text of a regular file in UTF-8, lines ending in `\\n`; OSError as `read_file`, or UnicodeDecodeError."""
    return read_file(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _check_regular(found: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(code, f"Is {kind}, expected a file", str(path))


def write_atomically(path: Path, text: str) -> None:
    """
    Write `text` to `path`, in UTF-8.

    Raises:
        OSError: it cannot be written; what stood there stays.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        _write_into(target, text)
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".shardwright-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _write_into(target: Path, text: str) -> None:
    """Write to a device, or to a pipe that somebody reads."""
    handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
