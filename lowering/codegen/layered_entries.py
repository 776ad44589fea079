"""
Write the entries of a plan's inputs and outputs, with one entry for equal layers.

    *rt.per_layer(range(12), (rt.Value(role="param", name="h.{}.mlp.up.weight", ...), ...)),
    *rt.updated(0, ("param", "state", "state") * 196),
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from .layout import Doc, Group, call, flat, keyword, literal, repeated_tuple, tuple_of
from .numbered_layers import numbered

PER_LAYER = "*rt.per_layer("
"""The opening of the entries of equal layers."""

_LEAST = 12
"""The least number of entries that are worth a combined entry."""

_NUMBER = "{}"
"""The placeholder for the number of a layer in a name."""

_Entry = Mapping[str, Any]


def layered_entries(function: str, entries: Sequence[_Entry]) -> Iterator[Doc]:
    """Write the entries in order, each as a call of `function` or as a combined entry."""
    at = 0
    while at < len(entries):
        if (count := _updates(entries[at:])) >= _LEAST:
            roles = repeated_tuple([entry["role"] for entry in entries[at : at + count]])
            yield "*" + flat(call("rt.updated", [str(entries[at]["updates"]), roles]))
            at += count
            continue
        size, layers = _layers(entries, at)
        if size * (layers - 1) >= _LEAST:
            _, number = numbered(entries[at]["name"])
            assert number is not None, "the name of what belongs to a layer has a number"
            members = tuple_of([_call(function, _form(each)) for each in entries[at : at + size]], fill=False)
            yield Group(PER_LAYER, (f"range({number}, {number + layers})", members), ")")
            at += size * layers
            continue
        yield _call(function, entries[at])
        at += 1


def _call(function: str, entry: _Entry) -> Group:
    return call(function, (keyword(name, literal(value)) for name, value in entry.items()))


def _updates(entries: Sequence[_Entry]) -> int:
    """Count the leading entries that only update consecutive inputs."""
    count = 0
    for entry in entries:
        if entry.keys() != {"role", "updates"} or entry["updates"] != entries[0]["updates"] + count:
            break
        count += 1
    return count


def _layers(entries: Sequence[_Entry], at: int) -> tuple[int, int]:
    """Return the number of entries of the layer that begins at `at`, and the number of equal layers from there."""
    groups = [(key, list(members)) for key, members in groupby(entries[at:], _layer)]
    (family, number), first = groups[0]
    if not family or number is None or (at > 0 and _layer(entries[at - 1]) == (family, number)):
        return 1, 1
    form = [_form(each) for each in first]
    layers = 1
    for key, members in groups[1:]:
        if key != (family, number + layers) or [_form(each) for each in members] != form:
            break
        layers += 1
    return len(first), layers


def _layer(entry: _Entry) -> tuple[str, int | None]:
    """Return the layer that an entry belongs to; an entry that names several layers belongs to none."""
    name = str(entry.get("name", ""))
    return ("", None) if "tied" in entry or _NUMBER in name else numbered(name)


def _form(entry: _Entry) -> _Entry:
    """Replace the layer's number in the name of an entry by a placeholder."""
    name = entry["name"]
    family, number = numbered(name)
    return {**entry, "name": f"{family}.{_NUMBER}{name.removeprefix(f'{family}.{number}')}"}


def shared_forms(plans: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Return definitions of the forms of entries that several plans share, and the plans with names for them."""
    forms = Counter(doc.items[1] for plan in plans for doc in _walk(plan) if doc.opening == PER_LAYER)
    shared = [form for form, count in forms.items() if count > 1 and isinstance(form, Group)]
    names: dict[Doc, Doc] = {form: f"FORMS{number or ''}" for number, form in enumerate(shared)}

    def named(doc: Doc) -> Doc:
        if isinstance(doc, str):
            return doc
        return names.get(doc) or replace(doc, items=tuple(map(named, doc.items)))

    definitions = [replace(form, opening=f"{names[form]} = {form.opening}") for form in shared]
    return definitions, [replace(plan, items=tuple(map(named, plan.items))) for plan in plans]


def _walk(doc: Doc) -> Iterator[Group]:
    if isinstance(doc, Group):
        yield doc
        for item in doc.items:
            yield from _walk(item)
