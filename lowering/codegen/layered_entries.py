"""
Write the entries of a plan's inputs and outputs, with one entry for equal layers.

    *rt.per_layer(range(12), (rt.Value(role="param", name="h.{}.mlp.up.weight", ...), ...)),
    *rt.updated(0, ("param", "state", "state") * 196),
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .layout import Doc, Group, call, flat, keyword, literal, repeated_tuple, tuple_of
from .numbered_layers import equal_layers, numbered

PER_LAYER = "*rt.per_layer("
"""The opening of the entries of equal layers."""

_LEAST = 12
"""The least number of entries that are worth a combined entry."""

_NUMBER = "{}"
"""The placeholder for the number of a layer in a name."""

_Entry = Mapping[str, Any]


def layered_entries(function: str, entries: Sequence[_Entry]) -> Iterator[Doc]:
    """Write the entries in order, each as a call of `function` or as a combined entry."""
    for layers in equal_layers(entries, _layer, _form):
        first, others = layers[0], layers[1:]
        if len(first) * len(others) >= _LEAST:
            _, number = _layer(first[0])
            assert number is not None, "equal layers have numbers"
            members = tuple_of([_call(function, _form(each)) for each in first], fill=False)
            yield Group(PER_LAYER, (f"range({number}, {number + len(layers)})", members), ")")
        else:
            yield from _single_entries(function, [entry for layer in layers for entry in layer])


def _single_entries(function: str, entries: Sequence[_Entry]) -> Iterator[Doc]:
    """Write entries one by one, except for many that only update consecutive inputs."""
    at = 0
    while at < len(entries):
        if (count := _updates(entries[at:])) >= _LEAST:
            roles = repeated_tuple([literal(entry["role"]) for entry in entries[at : at + count]])
            yield "*" + flat(call("rt.updated", [str(entries[at]["updates"]), roles]))
            at += count
        else:
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


def _layer(entry: _Entry) -> tuple[str, int | None]:
    """Return the layer that an entry belongs to; an entry that names several layers belongs to none."""
    name = str(entry.get("name", ""))
    return ("", None) if "tied" in entry or _NUMBER in name else numbered(name)[:2]


def _form(entry: _Entry) -> _Entry:
    """Replace the layer's number in the name of an entry by a placeholder."""
    family, _, rest = numbered(entry["name"])
    return {**entry, "name": f"{family}.{_NUMBER}{rest}"}


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
