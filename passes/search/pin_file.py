"""
Pin files: decisions of the user, as TOML.

```toml
[[pin]]
value = "h.*.weight"              # a glob over parameters, states (h.0.weight.exp_avg),
sharding = '[{"gpu"}, {}]'        # gradients (h.0.weight.grad) and batch inputs (batch.0)

[[pin]]
preset = "dp"                     # or "zero1", "zero2", "zero3", "tp"
axes = ["gpu"]                    # the axes that it is for; all by default
```

`dp` splits the batch, runs every op on its part of the batch and keeps parameters replicated. `zero1` also splits the
states of the optimizer, and each device updates its part of every parameter. Gradients are reduced straight to the
parts that are updated, so `zero2`, which splits gradients too, is the same program. `zero3` splits parameters as well
and gathers them again for every use. `tp` keeps the batch replicated and splits every weight matrix where a matrix
product uses it; the cheapest completions of `tp` are Megatron's layouts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from ...ir.cluster_fields import shown
from ...ir.pins import PRESETS, Pin
from ...ir.plain import PlainTable, are_tables, are_texts, did_you_mean
from ...ir.sharding import parse_sharding
from ...ir.text_file import read_text
from ...ir.toml_text import read_toml

_ALIASES = {"ddp": "dp", "fsdp": "zero3", "fsdp2": "zero3", "zero": "zero3", "megatron": "tp", "tensor_parallel": "tp"}
"""Names of presets in other tools."""

_MOST_CHARACTERS = 10_000
"""The maximum length of a glob or a sharding."""

_ENTRY = re.compile(r"\s*\[\[\s*pin\s*\]\]")


class PinError(ValueError):
    """A pin cannot be read or obeyed."""


def is_pin_text(pins: Path | str) -> bool:
    """Whether pins are given as TOML text rather than as a preset or a file."""
    return isinstance(pins, str) and "[[pin]]" in pins


def load_pins(given: str | Path) -> tuple[Pin, ...]:
    """
    Read the pins of a file, of a preset, or of TOML text.

    Raises:
        PinError: the text is invalid (names file, line and entry), or the file and the preset do not exist.
    """
    if given in PRESETS:
        return (Pin(preset=str(given)),)
    if is_pin_text(given):
        return parse_pins(str(given))
    if str(given).isidentifier() and not Path(given).exists():
        named = _ALIASES.get(str(given).lower())
        meant = f"; {given} is called {named!r} here" if named is not None else did_you_mean(str(given), PRESETS)
        raise PinError(f"pins {str(given)!r}: expected a file or a preset ({', '.join(PRESETS)}){meant}")
    try:
        return parse_pins(read_text(given), str(given))
    except OSError as error:
        raise PinError(f"{given}: cannot read the pin file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PinError(f"{given}: the pin file is not UTF-8 text") from error


def verify_names(given: str | Path, known: Collection[str]) -> None:
    """
    Refuse a pin whose value looks like a misspelt name of `known`, the names that are known before import.

    Any other name may belong to a state or a constant, and is left to `apply_pins`.
    """
    for pin in load_pins(given):
        matches = any(fnmatchcase(name, pin.value) or pin.value.startswith(f"{name}.") for name in known)
        if pin.value and not matches and (near := did_you_mean(pin.value, known)):
            raise PinError(f"{pin} matches no parameter, state, gradient or batch input{near}")


def parse_pins(text: str, source: str = "pins") -> tuple[Pin, ...]:
    """Read pins from TOML text; see `load_pins`."""
    try:
        table = read_toml(text)
    except ValueError as error:
        raise PinError(f"{source}: {error}") from error
    entries = table.get("pin")
    if not isinstance(entries, list) or set(table) != {"pin"} or not entries or not are_tables(entries):
        raise PinError(f'{source}: expected [[pin]] entries, each with value and sharding or with preset = "dp"')
    # The IR holds only the name of the file, so that the IR is the same on every machine.
    name = Path(source).name
    lines = [f":{number}" for number, line in enumerate(text.splitlines(), 1) if _ENTRY.match(line)]
    if len(lines) != len(entries):
        lines = [""] * len(entries)
    return tuple(
        replace(_pin(entry, f"{source}{line}: pin {number}"), place=f"{name}{line}")
        for number, (entry, line) in enumerate(zip(entries, lines, strict=True), 1)
    )


def _pin(entry: PlainTable, place: str) -> Pin:
    fields, texts = set(entry), {name: text for name, text in entry.items() if isinstance(text, str)}
    for name in fields - {"axes"}:
        if name not in texts:
            raise PinError(f"{place}: {shown(name)} is {shown(entry[name])}, expected text")
        if len(texts[name]) > _MOST_CHARACTERS:
            raise PinError(f"{place}: {shown(name)} is longer than {_MOST_CHARACTERS} characters")
    if fields == {"value", "sharding"}:
        try:
            return Pin(value=texts["value"], sharding=parse_sharding(texts["sharding"]))
        except ValueError as error:
            raise PinError(f"{place}: sharding: {error}") from error
    if "preset" in fields and fields <= {"preset", "axes"}:
        if texts["preset"] not in PRESETS:
            near = did_you_mean(texts["preset"], PRESETS)
            raise PinError(f"{place}: preset {shown(texts['preset'])} is not one of {', '.join(PRESETS)}{near}")
        axes = entry.get("axes")
        if axes is not None and not (isinstance(axes, list) and are_texts(axes) and len(set(axes)) == len(axes)):
            raise PinError(f'{place}: axes is {shown(axes)}, expected names of axes, each once, as ["gpu"]')
        return Pin(preset=texts["preset"], axes=tuple(axes) if axes is not None else None)
    raise PinError(f"{place}: has {shown(sorted(fields))}; expected value and sharding, or preset and axes")
