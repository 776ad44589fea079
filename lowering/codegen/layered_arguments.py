"""
Write the arguments of a step that belong to equal layers as lists: `h[3]` holds the parameters of layer 3.

    def step(comm, *given):
        wte_weight, wte_weight_exp_avg = given[:2]
        h, h_exp_avg = rt.by_layer(given[2:50], 12, (0, 1) * 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, SSAValue

from ...dialects.step import argument_attributes
from .layout import INDENT, Doc, Group, assignment, call, flat, repeated_tuple, tuple_of
from .names import NamedList, Names
from .numbered_layers import numbered
from .plan import argument_name, role_of_argument

_LEAST = 3
"""The least number of arguments of a layer that are worth a list."""


@dataclass(frozen=True)
class LayeredArguments:
    """
    Consecutive arguments of equal layers, in the order of the layers.

    Args:
        family: name of the layers without their number.
        layers: arguments of each layer.
        kinds: kind of each argument of a layer: empty for a parameter, else the name of a state or role.
        first: number of the first layer.
    """

    family: str
    layers: Sequence[Sequence[BlockArgument]]
    kinds: Sequence[str]
    first: int

    @property
    def lists(self) -> list[list[SSAValue]]:
        """The arguments as one list per kind and layer, sorted by kind."""
        return [
            [value for value, each in zip(layer, self.kinds, strict=True) if each == kind]
            for kind in dict.fromkeys(self.kinds)
            for layer in self.layers
        ]

    @property
    def arguments(self) -> list[BlockArgument]:
        """All arguments, in order."""
        return [value for layer in self.layers for value in layer]

    def pattern(self) -> Doc:
        """Return the number of the kind of each argument of a layer: `(0, 1, 2) * 16`."""
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(self.kinds))}
        return repeated_tuple([numbers[kind] for kind in self.kinds])


def layered_arguments(func: FuncOp, arguments: Sequence[BlockArgument]) -> list[LayeredArguments]:
    """Return the `arguments` of equal layers, which have equal names, except for the number, in the same order."""
    roles = argument_attributes(func)
    values = [(value, _describe(roles[value.index])) for value in arguments]
    layers = [(key, list(members)) for key, members in groupby(values, lambda each: each[1][:2])]
    result: list[LayeredArguments] = []
    at = 0
    while at < len(layers):
        (family, number), members = layers[at]
        end, form = at + 1, _form(members)
        while end < len(layers) and layers[end][0] == (family, number + end - at) and _form(layers[end][1]) == form:
            end += 1
        if family and end > at + 1 and len(members) >= _LEAST:
            by_layer = [[value for value, _ in each] for _, each in layers[at:end]]
            result.append(LayeredArguments(family, by_layer, [kind for kind, _ in form], number))
        at = end
    return result


_Described = tuple[str, int, str, str]


def _describe(roles: Mapping[str, Attribute]) -> _Described:
    """Return the family and number of an argument's layer, its kind, and its name within the layer."""
    kind, name = role_of_argument(roles)
    family, number = numbered(name)
    if number is None:
        return "", 0, kind, name
    return family, number, kind, name.removeprefix(f"{family}.{number}")


def _form(members: Sequence[tuple[BlockArgument, _Described]]) -> list[tuple[str, str]]:
    return [(kind, name) for _, (_, _, kind, name) in members]


class NamedArguments:
    """The names of a step's arguments; arguments of layers are elements of lists."""

    def __init__(
        self, func: FuncOp, arguments: Sequence[BlockArgument], names: Names, layered: Sequence[LayeredArguments]
    ) -> None:
        self._layered, self._lists = layered, list[tuple[LayeredArguments, list[str]]]()
        self._args, roles = arguments, argument_attributes(func)
        inside = {value for layered_group in layered for value in layered_group.arguments}
        self._names: dict[SSAValue, str] = {}
        for value in arguments:
            if value not in inside:
                self._names[value] = names.new(value, argument_name(roles[value.index]))
        for layered_group in layered:
            base = (
                layered_group.family
                if not layered_group.first
                else f"{layered_group.family}.from.{layered_group.first}"
            )
            kinds = dict.fromkeys(layered_group.kinds)
            variables = {kind: names.beside(f"{base}.{kind}" if kind else base) for kind in kinds}
            places = [(variables[kind], number) for kind in kinds for number in range(len(layered_group.layers))]
            for (variable, number), values in zip(places, layered_group.lists, strict=True):
                names.enter_list(NamedList(f"{variable}[{number}]", list(values), variable, variable=False))
            self._lists.append((layered_group, list(variables.values())))

    @property
    def parameters(self) -> list[str]:
        """The parameters of the function."""
        return ["*given"] if self._layered else list(self._names.values())

    def head(self) -> Iterator[str]:
        """Write the lines that assign the arguments to their names."""
        at = 0
        for group, variables in self._lists:
            begin = self._args.index(group.arguments[0])
            yield from self._plain(at, begin)
            at = begin + len(group.arguments)
            given = f"given[{begin}:{at}]"
            made = call("rt.by_layer", [given, str(len(group.layers)), group.pattern()])
            yield from assignment(variables, made, INDENT, unpacked=True)
        if self._layered:
            yield from self._plain(at, len(self._args))

    def _plain(self, begin: int, end: int) -> Iterator[str]:
        if begin < end:
            names = [self._names[value] for value in self._args[begin:end]]
            place = Group(f"given[{begin or ''}:{end if end < len(self._args) else ''}]", (), "")
            yield from assignment(names, place, INDENT, unpacked=True)

    def returned(self, names: Names, values: Sequence[SSAValue]) -> list[str]:
        """Return the texts of returned values, with the lists of layers in the order of their arguments."""
        texts_returned: list[str] = []
        at = 0
        while at < len(values):
            for group, variables in self._lists:
                texts = self._texts(group, variables)
                if [names[value] for value in values[at : at + len(texts)]] == texts:
                    joined = tuple_of(variables)
                    texts_returned.append("*" + flat(call("rt.in_order", [joined, group.pattern()])))
                    at += len(texts)
                    break
            else:
                end = next((i for i in range(at + 1, len(values)) if self._begins(names, values[i])), len(values))
                texts_returned += names.listed(values[at:end])
                at = end
        return texts_returned

    def _begins(self, names: Names, value: SSAValue) -> bool:
        """Return whether a value has the name of the first argument of some layers."""
        return any(names[value] == f"{variables[0]}[0][0]" for _, variables in self._lists)

    @staticmethod
    def _texts(each: LayeredArguments, variables: Sequence[str]) -> list[str]:
        """Return the elements of the lists of some layers, in the order of the arguments."""
        kinds = dict(zip(dict.fromkeys(each.kinds), variables, strict=True))
        texts: list[str] = []
        for number in range(len(each.layers)):
            counts = dict.fromkeys(kinds, 0)
            for kind in each.kinds:
                texts.append(f"{kinds[kind]}[{number}][{counts[kind]}]")
                counts[kind] += 1
        return texts
