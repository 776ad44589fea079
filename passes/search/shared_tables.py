"""Tables that are shared by equal decisions of a step, and by several problems of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from ...dialects.compute import element_bytes
from ...ir.cluster import Cluster
from ...ir.ratios import Splits
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ..analysis.resharding import ReshardCosts
from ..analysis.step_prices import Pricing
from .objective import Price
from .problem import Costs

Port = tuple[Sharding, ...]
"""The sharding of one operand or result in each state of a decision."""


@dataclass
class Tables:
    """
    Arrays and lists that equal uses of ops share, by identity, on one cluster.

    Problems may share them if they differ only in weights or constraints, also problems of copies of a step.
    """

    cluster: Cluster
    costs: dict[Pricing, ReshardCosts] = field(default_factory=dict[Pricing, ReshardCosts])
    signatures: dict[object, tuple[Signature, ...]] = field(default_factory=dict[object, tuple[Signature, ...]])
    wider: dict[int, tuple[Signature, ...]] = field(default_factory=dict[int, tuple[Signature, ...]])
    """Maps `id` of a tuple of allowed signatures to all signatures of the op, before limits."""
    unary: dict[object, Costs] = field(default_factory=dict[object, Costs])
    ports: dict[tuple[int, bool, int], Port] = field(default_factory=dict[tuple[int, bool, int], Port])
    unions: dict[tuple[int, ...], Port] = field(default_factory=dict[tuple[int, ...], Port])
    homes: dict[object, Port] = field(default_factory=dict[object, Port])
    tables: dict[tuple[object, ...], Costs] = field(default_factory=dict[tuple[object, ...], Costs])
    kept: list[object] = field(default_factory=list[object])

    def port(self, states: tuple[Signature, ...], result: bool, index: int) -> Port:
        """Return the sharding of one operand or result in each of the signatures."""
        key = (id(states), result, index)
        if key not in self.ports:
            self.ports[key] = tuple((s.results if result else s.operands)[index] for s in states)
        return self.ports[key]

    def union(self, ports: Sequence[Port]) -> Port:
        """Return the distinct shardings of several ports, in order of appearance."""
        key = tuple(dict.fromkeys(map(id, ports)))
        if key not in self.unions:
            self.unions[key] = tuple(dict.fromkeys(s for port in ports for s in port))
        return self.unions[key]

    def table(self, value: SSAValue, splits: Splits, sources: Port, targets: Port, price: Price) -> Costs | None:
        """Return the resharding seconds between two ports of a value, at a price, or None if every pair is free."""
        key = (splits, element_bytes(value), id(sources), id(targets), price)
        if key not in self.tables:
            distinct_s, distinct_t = tuple(dict.fromkeys(sources)), tuple(dict.fromkeys(targets))
            costs = self.costs.setdefault(price.pricing, ReshardCosts(self.cluster, price.pricing))
            small = costs.matrix(splits, element_bytes(value) / price.turns, distinct_s, distinct_t)
            table = small[np.ix_(positions(distinct_s, sources), positions(distinct_t, targets))]
            table = np.ascontiguousarray(price.weight * price.turns * price.times * table)
            if not price.reduces:
                table[_reducing(sources, targets)] = np.inf
            table.flags.writeable = False
            self.tables[key] = table
        table = self.tables[key]
        return table if table.any() else None


def _reducing(sources: Sequence[Sharding], targets: Sequence[Sharding]) -> NDArray[np.bool_]:
    """Return, by source and target, whether the resharding reduces over some axis."""
    over = [[not set(source.partial_axes).issubset(target.partial_axes) for target in targets] for source in sources]
    return np.array(over, dtype=np.bool_).reshape(len(sources), len(targets))


def positions(distinct: Sequence[Sharding], port: Port) -> list[int]:
    """Return the index of each sharding of a port in the list of distinct ones."""
    at = {sharding: index for index, sharding in enumerate(distinct)}
    return [at[sharding] for sharding in port]
