"""
Pin files: what the user has decided, as TOML.

```toml
[[pin]]
value = "h.*.weight"              # a glob over parameters, states (h.0.weight.exp_avg),
sharding = '[{"gpu"}, {}]'        # gradients (h.0.weight.grad) and batch inputs (batch.0)

[[pin]]
preset = "dp"                     # or "zero1", "zero2", "zero3", "tp"
axes = ["gpu"]                    # the axes that it is for; all by default
```

`dp` splits the batch, runs every op on its part of the batch and keeps parameters replicated; `zero1` does the same
with the states of the optimizer split, each device updating its part of every parameter (a gradient is reduced straight
to the parts that are updated, so `zero2`, which splits gradients too, is the same program); `zero3` splits parameters
as well and gathers them anew for every use; `tp` leaves the batch unsplit and splits every matrix of a matrix product
where it is used (Megatron's layouts are the cheapest completions of that).
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
"""What other tools call the presets."""

_MOST_CHARACTERS = 10_000
"""Of a glob, or of a sharding."""

_ENTRY = re.compile(r"\s*\[\[\s*pin\s*\]\]")


class PinError(ValueError):
    """A pin that cannot be read or obeyed."""


def is_pin_text(pins: Path | str) -> bool:
    """Whether pins are given as TOML text, and not as a preset or a file."""
    return isinstance(pins, str) and "[[pin]]" in pins


def load_pins(given: str | Path) -> tuple[Pin, ...]:
    """
    The pins of a file, of a preset, or of TOML text.

    Raises:
        PinError: the text is no pins (names file, line and entry), or there is neither such a file nor such a preset.
    """
    if given in PRESETS:
        return (Pin(preset=str(given)),)
    if is_pin_text(given):
        return parse_pins(str(given))
    if str(given).isidentifier() and not Path(given).exists():
        named = _ALIASES.get(str(given).lower())
        meant = f"; {given} is called {named!r} here" if named is not None else did_you_mean(str(given), PRESETS)
        raise PinError(f"pins {str(given)!r} are no file and no preset ({', '.join(PRESETS)}){meant}")
    try:
        return parse_pins(read_text(given), str(given))
    except OSError as error:
        raise PinError(f"{given}: cannot read the pin file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PinError(f"{given}: the pin file is not UTF-8 text") from error


def verify_names(given: str | Path, known: Collection[str]) -> None:
    """
    Refuse a pin whose value is none of the names that are known before a step is imported, but much like one.

    Another name may be the name of a state, or of a constant, and is left to `apply_pins`.
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
    # The IR has the name of the file alone, so that it is the same on every machine.
    name, lines = Path(source).name, _lines(text, len(entries))
    return tuple(
        replace(_pin(entry, f"{source}{line}: pin {number}"), place=f"{name}{line}")
        for number, (entry, line) in enumerate(zip(entries, lines, strict=True), 1)
    )


def _lines(text: str, count: int) -> list[str]:
    """The line of every entry, as `:3`; empty where entries are not written one by one."""
    found = [f":{number}" for number, line in enumerate(text.splitlines(), 1) if _ENTRY.match(line)]
    return found if len(found) == count else [""] * count


def _pin(entry: PlainTable, place: str) -> Pin:
    fields, given = set(entry), {name: text for name, text in entry.items() if isinstance(text, str)}
    for name in fields - {"axes"}:
        if name not in given:
            raise PinError(f"{place}: {shown(name)} is {shown(entry[name])}, expected text")
        if len(given[name]) > _MOST_CHARACTERS:
            raise PinError(f"{place}: {shown(name)} is longer than {_MOST_CHARACTERS} characters")
    if fields == {"value", "sharding"}:
        try:
            return Pin(value=given["value"], sharding=parse_sharding(given["sharding"]))
        except ValueError as error:
            raise PinError(f"{place}: sharding: {error}") from error
    if "preset" in fields and fields <= {"preset", "axes"}:
        if given["preset"] not in PRESETS:
            near = did_you_mean(given["preset"], PRESETS)
            raise PinError(f"{place}: preset {shown(given['preset'])} is not one of {', '.join(PRESETS)}{near}")
        axes = entry.get("axes")
        if axes is not None and not (isinstance(axes, list) and are_texts(axes) and len(set(axes)) == len(axes)):
            raise PinError(f'{place}: axes is {shown(axes)}, expected names of axes, each once, as ["gpu"]')
        return Pin(preset=given["preset"], axes=tuple(axes) if axes is not None else None)
    raise PinError(f"{place}: has {shown(sorted(fields))}; expected value and sharding, or preset and axes")
