"""
Files whose names come from users, who may name a pipe, a folder or a binary file.

A read accepts a regular file of a bounded size: a pipe must not hang. A write is atomic for a regular file, new or old;
it follows a link and keeps it, and it writes to a device instead of replacing it.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

MOST_BYTES = 2**30
"""Size limit of a text file in bytes (one GiB), unless the reader sets another."""

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
    Return the bytes of a regular file, or of the regular file that a link points to.

    Args:
        most: upper limit of the bytes that are read.

    Raises:
        OSError: the file is missing, too large, or not regular (this is not waited for); `strerror` says which.
    """
    # Opening a pipe without a writer would block, and opening a device may have an effect.
    _check_regular(os.stat(path), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        _check_regular(status, path)
        # Files of /proc report a size of 0. A read allocates memory for all bytes that it requests.
        data = bytearray()
        while status.st_size <= most and len(data) <= most and (piece := file.read(_PIECE)):
            data += piece
        if len(data) > most or status.st_size > most:
            raise OSError(errno.EFBIG, f"Is larger than {most} bytes", str(path))
    return bytes(data)


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    """Return the text of a UTF-8 file, lines ending in `\\n`; raise OSError as `read_file`, or UnicodeDecodeError."""
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
        OSError: the write failed, with `path` as its file; the old content stays.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # The target is a device, or a pipe that has a reader.
        handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(handle, True)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".shardwright-")
    except OSError as error:
        # The error names the temporary file, which the user does not know.
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
