"""Pins as the passes want them: in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..passes.search.pins import PinError

PRESETS = ("dp", "zero1", "zero2", "zero3", "tp")

_ALIASES = {"ddp": "dp", "fsdp": "zero3", "fsdp2": "zero3", "zero": "zero3", "megatron": "tp", "tensor_parallel": "tp"}
"""What other tools call the presets."""


def is_pin_text(pins: Path | str) -> bool:
    """Whether pins are given as TOML text, and not as a preset or a file."""
    return isinstance(pins, str) and "[[pin]]" in pins


@contextmanager
def pin_file(pins: Path | str | None) -> Iterator[str | None]:
    """
    The path of a file with the given pins, for as long as the context lasts; None for no pins.

    Args:
        pins: a pin file, the name of a preset, or pins as TOML text.

    Raises:
        PinError: a name that is neither a file nor a preset.
    """
    if pins is None or not (pins in PRESETS or is_pin_text(pins)):
        if pins is not None and str(pins).isidentifier() and not Path(pins).exists():
            named = _ALIASES.get(str(pins).lower())
            meant = f"; {pins} is what {named!r} does here" if named is not None else ""
            raise PinError(f"pins {str(pins)!r} are no file and no preset ({', '.join(PRESETS)}){meant}")
        yield str(pins) if pins is not None else None
        return
    text = f'[[pin]]\npreset = "{pins}"\n' if pins in PRESETS else str(pins)
    with tempfile.TemporaryDirectory(prefix="shardwright-pins-") as folder:
        path = Path(folder, "pins.toml")
        path.write_text(text, encoding="utf-8")
        yield str(path)
