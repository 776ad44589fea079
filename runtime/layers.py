"""What belongs to equal layers, as programs write it: lists of tensors, and entries of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import torch

from .plan import Result, ResultRole, Spread

Entry = TypeVar("Entry", bound=Spread)

Tensors = list[torch.Tensor]
"""Those of one kind of one layer."""


def by_layer(given: Sequence[torch.Tensor], layers: int, kinds: Sequence[int]) -> list[list[Tensors]]:
    """
    The tensors of layers, by kind and then by layer.

    Args:
        given: those of the first layer, then those of the second, ...
        layers: how many there are.
        kinds: for each tensor of a layer, the number of its kind.
    """
    size = len(kinds)
    return [
        [[given[layer * size + at] for at, each in enumerate(kinds) if each == kind] for layer in range(layers)]
        for kind in range(max(kinds) + 1)
    ]


def in_order(lists: Sequence[Sequence[Tensors]], kinds: Sequence[int]) -> Iterator[torch.Tensor]:
    """What `by_layer` took apart, in the order in which it was given."""
    for layer in zip(*lists, strict=True):
        tensors = [iter(each) for each in layer]
        yield from (next(tensors[kind]) for kind in kinds)


def split(values: Iterable[torch.Tensor], *sizes: int) -> list[Tensors]:
    """Values as lists of the given sizes, one after the other."""
    left = iter(values)
    return [list(islice(left, size)) for size in sizes]


def grouped(values: Iterable[torch.Tensor], numbers: Sequence[int]) -> list[Tensors]:
    """Values as lists: for each, the number of the list that it is in."""
    lists: list[Tensors] = [[] for _ in range(max(numbers) + 1)]
    for value, number in zip(values, numbers, strict=True):
        lists[number].append(value)
    return lists


def per_layer(numbers: Iterable[int], forms: Sequence[Entry]) -> Iterator[Entry]:
    """Inputs or outputs of layers: `forms` for each of the numbers, which takes the place of ``{}`` in the names."""
    for number in numbers:
        yield from (replace(form, name=form.name.replace("{}", str(number))) for form in forms)


def updated(first: int, roles: Iterable[ResultRole]) -> Iterator[Result]:
    """Outputs that are the next values of neighbouring inputs, from number `first` on."""
    for index, role in enumerate(roles, first):
        yield Result(role, updates=index)
