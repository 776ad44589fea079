"""Pins as the passes want them: in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRESETS = ("dp", "zero1", "zero2", "zero3", "tp")


def is_pin_text(pins: Path | str) -> bool:
    """Whether pins are given as TOML text, and not as a preset or a file."""
    return isinstance(pins, str) and "[[pin]]" in pins


@contextmanager
def pin_file(pins: Path | str | None) -> Iterator[str | None]:
    """
    The path of a file with the given pins, for as long as the context lasts; None for no pins.

    Args:
        pins: a pin file, the name of a preset, or pins as TOML text.
    """
    if pins is None or not (pins in PRESETS or is_pin_text(pins)):
        yield str(pins) if pins is not None else None
        return
    text = f'[[pin]]\npreset = "{pins}"\n' if pins in PRESETS else str(pins)
    with tempfile.TemporaryDirectory(prefix="shardwright-pins-") as folder:
        path = Path(folder, "pins.toml")
        path.write_text(text, encoding="utf-8")
        yield str(path)
