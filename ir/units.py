"""Times and sizes as text for people."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """Return a time as `1.25 s`, `3.1 ms` or `12 us`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def bytes_text(count: float) -> str:
    """Return a size as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
