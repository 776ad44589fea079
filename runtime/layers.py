"""Helpers with which programs describe equal layers: lists of tensors, and entries of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import torch

from .plan import Result, ResultRole, SpreadTensor

Entry = TypeVar("Entry", bound=SpreadTensor)

Tensors = list[torch.Tensor]
"""The tensors of one kind of one layer."""


def by_layer(given: Sequence[torch.Tensor], layers: int, kinds: Sequence[int]) -> list[list[Tensors]]:
    """
    Group the tensors of layers by kind and then by layer.

    Args:
        given: tensors of all layers, one layer after the other.
        kinds: the number of the kind of each tensor of a layer.
    """
    size = len(kinds)
    return [
        [[given[layer * size + at] for at, own in enumerate(kinds) if own == kind] for layer in range(layers)]
        for kind in range(max(kinds) + 1)
    ]


def in_order(lists: Sequence[Sequence[Tensors]], kinds: Sequence[int]) -> Iterator[torch.Tensor]:
    """Undo `by_layer`: yield the tensors layer by layer."""
    for layer in zip(*lists, strict=True):
        tensors = [iter(kind_tensors) for kind_tensors in layer]
        yield from (next(tensors[kind]) for kind in kinds)


def from_each(lists: Iterable[Tensors], *places: int) -> Iterator[torch.Tensor]:
    """Yield the tensors at some places of each list, or all tensors of each list if no places are given."""
    for tensors in lists:
        yield from (tensors[place] for place in places) if places else tensors


def split(values: Iterable[torch.Tensor], *sizes: int) -> list[Tensors]:
    """Split values into consecutive lists of the given sizes."""
    remaining = iter(values)
    return [list(islice(remaining, size)) for size in sizes]


def grouped(values: Iterable[torch.Tensor], numbers: Sequence[int]) -> list[Tensors]:
    """Group values into lists; `numbers` has the index of the list for each value."""
    lists: list[Tensors] = [[] for _ in range(max(numbers) + 1)]
    for value, number in zip(values, numbers, strict=True):
        lists[number].append(value)
    return lists


def per_layer(numbers: Iterable[int], forms: Sequence[Entry]) -> Iterator[Entry]:
    """Yield inputs or outputs of layers: `forms` for each number, which replaces ``{}`` in the names."""
    for number in numbers:
        yield from (replace(form, name=form.name.replace("{}", str(number))) for form in forms)


def updated(first: int, roles: Iterable[ResultRole]) -> Iterator[Result]:
    """Yield outputs that are the next values of consecutive inputs, starting at index `first`."""
    for index, role in enumerate(roles, first):
        yield Result(role, updates=index)
