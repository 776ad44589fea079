"""
Group the values that go to the fragments of a step in lists by layer, so that a call of a fragment is a few lines.

    given = [[h_4_ln_1_weight, h_4_ln_1_bias, ...], [h_5_ln_1_weight, ...], ...]
    h_7_add_0, forward1_saved_0 = forward1(comm, 0, h_3_add_at1_0, given)

The values of a bundle are freed together, so that a list keeps none of them alive for longer than a variable would.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ...dialects.pipe import FragmentOp, TransferOp
from .equal_layers import ValueUses
from .numbered_layers import numbered, numbered_layer

_LEAST = 8
"""The least number of values of a bundle."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """
    Values of layers that the same fragments capture, and that are freed together.

    Args:
        layers: values of each layer.
        readers: fragments that capture the values.
        source: the fragment that yields the values part by part, or None for values from before the loop.
        end: key of the place in the loop or directly after it that frees the values, or None if they remain.
    """

    layers: Sequence[Sequence[SSAValue]]
    readers: Collection[FragmentOp]
    source: FragmentOp | None
    end: Hashable

    @property
    def values(self) -> list[SSAValue]:
        """All values, in order."""
        return [value for layer in self.layers for value in layer]

    @property
    def keys(self) -> Mapping[SSAValue, Hashable]:
        """The key of the layer of each value."""
        return {value: (self, number) for number, layer in enumerate(self.layers) for value in layer}

    @property
    def label(self) -> str:
        """The name of the list in the function of a fragment."""
        return "given" if self.source is None else "saved"


def find_bundles(
    uses: ValueUses, captured: Mapping[FragmentOp, Sequence[SSAValue]], ends: Mapping[SSAValue, Hashable]
) -> list[Bundle]:
    """
    Return the bundles of a function.

    Args:
        captured: values that each fragment captures.
        ends: `Bundle.end` of each value that may be in a bundle.
    """
    readers: dict[SSAValue, list[FragmentOp]] = {}
    layers: dict[SSAValue, str] = {}
    for fragment, values in captured.items():
        first_reads = {value: op for op in reversed(fragment.body.block.ops) for value in op.operands}
        for value in ends.keys() & {*values}:
            if any(isinstance(use.operation, TransferOp) for use in value.uses):
                continue
            readers.setdefault(value, []).append(fragment)
            source = _source(value)
            maker = source.terminator.args[index_of(value)].owner if source is not None else None
            maker = (maker if isinstance(maker, Operation) else source) or first_reads[value]
            layers.setdefault(value, numbered_layer(maker))
    positions: dict[object, int] = {op: index for index, op in enumerate(uses.ops)}

    def place(value: SSAValue) -> tuple[str, int | None, int, int]:
        return *numbered(layers[value])[:2], positions.get(value.owner, -1), index_of(value)

    groups: dict[Hashable, list[SSAValue]] = {}
    for value in sorted((value for value in readers if layers[value]), key=place):
        groups.setdefault((_source(value), *readers[value], None, ends[value]), []).append(value)
    bundles: list[Bundle] = []
    for values in groups.values():
        if len(values) >= _LEAST:
            by_layer = [list(layer) for _, layer in groupby(values, layers.__getitem__)]
            bundles.append(Bundle(by_layer, readers[values[0]], _source(values[0]), ends[values[0]]))
    return bundles


def index_of(value: SSAValue) -> int:
    """Return the index of a result of an op, or of an argument."""
    assert isinstance(value, OpResult | BlockArgument)
    return value.index


def _source(value: SSAValue) -> FragmentOp | None:
    return value.owner if isinstance(value.owner, FragmentOp) else None
