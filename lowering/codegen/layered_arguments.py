"""
Write the arguments of a step that belong to equal layers as lists: `h[3]` holds the parameters of layer 3.

    def step(comm, *given):
        wte_weight, wte_weight_exp_avg = given[:2]
        h, h_exp_avg = rt.by_layer(given[2:50], 12, (0, 1) * 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, SSAValue

from ...dialects.step import argument_attributes
from .layout import INDENT, Doc, Group, assignment, call, flat, literal, repeated_tuple, tuple_of
from .names import Names
from .numbered_layers import equal_layers, numbered
from .plan import role_of

_LEAST = 3
"""The least number of arguments of a layer that are worth a list."""


@dataclass
class _ArgumentLayers:
    """
    Consecutive arguments of equal layers, in the order of the layers.

    Args:
        name: name of the lists of parameters.
        layers: arguments of each layer.
        kinds: kind of each argument of a layer: empty for a parameter, else the name of a state or role.
        variables: the variable of each kind, once the arguments are named.
        texts: the names of the arguments, once they are named.
    """

    name: str
    layers: Sequence[Sequence[BlockArgument]]
    kinds: Sequence[str]
    variables: Sequence[str] = ()
    texts: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> list[BlockArgument]:
        return [value for layer in self.layers for value in layer]

    @property
    def lists(self) -> dict[str, list[list[SSAValue]]]:
        """The arguments of each kind, by layer."""
        return {
            kind: [[v for v, each in zip(layer, self.kinds, strict=True) if each == kind] for layer in self.layers]
            for kind in dict.fromkeys(self.kinds)
        }

    def enter(self, names: Names) -> None:
        """Name the arguments as elements of lists."""
        by_kind = self.lists
        self.variables = [names.beside(f"{self.name}.{kind}" if kind else self.name) for kind in by_kind]
        for variable, lists in zip(self.variables, by_kind.values(), strict=True):
            names.enter_table(variable, lists, variable, variable=False)
        self.texts = [names[value] for value in self.arguments]

    def pattern(self) -> Doc:
        """Return the number of the kind of each argument of a layer: `(0, 1, 2) * 16`."""
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(self.kinds))}
        return repeated_tuple([literal(numbers[kind]) for kind in self.kinds])


class StepArguments:
    """The arguments of a step. Equal layers, whose names differ only in a number, have their arguments in lists."""

    def __init__(self, func: FuncOp, values: Sequence[BlockArgument]) -> None:
        self._values, attributes = values, argument_attributes(func)
        self._roles = {value: role_of(attributes[value.index]) for value in values}
        self._layered: list[_ArgumentLayers] = []
        for layers in equal_layers(values, self._layer, self._form):
            if len(layers) > 1 and len(layers[0]) >= _LEAST:
                family, number = self._layer(layers[0][0])
                name = f"{family}.from.{number}" if number else family
                self._layered.append(_ArgumentLayers(name, layers, [self._form(value)[0] for value in layers[0]]))

    def _layer(self, value: BlockArgument) -> tuple[str, int | None]:
        return numbered(self._roles[value][1].get("name", ""))[:2]

    def _form(self, value: BlockArgument) -> tuple[str, str]:
        """Return the kind of an argument, and its name within its layer."""
        role, named = self._roles[value]
        return named.get("state", "" if role == "param" else role), numbered(named.get("name", ""))[2]

    @property
    def lists(self) -> list[list[SSAValue]]:
        """The lists of the arguments of equal layers."""
        return [values for each in self._layered for lists in each.lists.values() for values in lists]

    def enter(self, names: Names, *, layered: bool) -> list[str]:
        """
        Name the arguments and return the parameters of the function.

        Args:
            layered: whether arguments of equal layers are elements of lists.
        """
        self._layered = self._layered if layered else []
        inside = {value for each in self._layered for value in each.arguments}
        plain = [value for value in self._values if value not in inside]
        for value in plain:
            role, named = self._roles[value]
            names.new(value, "_".join(named.values()) or role or "argument")
        for each in self._layered:
            each.enter(names)
        return ["*given"] if self._layered else [names[value] for value in plain]

    def head(self, names: Names) -> Iterator[str]:
        """Write the lines that assign the arguments to their names."""
        at = 0
        for each in self._layered:
            begin = self._values.index(each.arguments[0])
            yield from self._plain(names, at, begin)
            at = begin + len(each.arguments)
            made = call("rt.by_layer", [f"given[{begin}:{at}]", str(len(each.layers)), each.pattern()])
            yield from assignment(each.variables, made, INDENT, unpacked=True)
        if self._layered:
            yield from self._plain(names, at, len(self._values))

    def _plain(self, names: Names, begin: int, end: int) -> Iterator[str]:
        if begin < end:
            place = Group(f"given[{begin or ''}:{end if end < len(self._values) else ''}]", (), "")
            yield from assignment([names[value] for value in self._values[begin:end]], place, INDENT, unpacked=True)

    def returned(self, names: Names, values: Sequence[SSAValue]) -> list[str]:
        """Return the texts of returned values, with the lists of layers in the order of their arguments."""
        own, returned = [names[value] for value in values], list[str]()
        begins = {each.texts[0]: each for each in self._layered}
        at = 0
        while at < len(values):
            each = begins.get(own[at])
            if each is not None and own[at : at + len(each.texts)] == each.texts:
                returned.append("*" + flat(call("rt.in_order", [tuple_of(each.variables), each.pattern()])))
                at += len(each.texts)
            else:
                end = next((i for i in range(at + 1, len(values)) if own[i] in begins), len(values))
                returned += names.listed(values[at:end])
                at = end
        return returned
