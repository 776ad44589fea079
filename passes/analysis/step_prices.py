"""The prices of single collectives in a search: their seconds, or a linearisation of them, weighted by axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...ir.cluster import Cluster
from ...ir.collective_cost import (
    Method,
    bucket_bytes,
    handled_share,
    has_hierarchy,
    is_gather_or_scatter,
    methods_of,
)
from ...ir.collectives import CollectiveKind, Step
from ...ir.interned import Interned
from ...ir.op_cost import COPY, op_rate

Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pricing(metaclass=Interned):
    """
    The weights of the seconds of collectives.

    weights       factors of seconds over exactly these axes (as in `Step.axes`); `()` stands for a device's local work,
                  sums in place and zeros of partial values, whose factor is 1 by default
    weight        factor of all other axes
    bucketed      whether bytes cost as much as in a full bucket
    latency_free  whether bytes cost the least that they can at any size, in any bucket and by any method; the result is
                  a lower bound
    whole         with `latency_free`, factor of the least seconds of the whole collective in any bucket, with latency;
                  they are added where nothing can continue before the collective ends
    tie           seconds added to every step, so that the shorter one of equal paths wins
    """

    weights: tuple[tuple[Axes, float], ...] = ()
    weight: float = 1.0
    bucketed: bool = False
    latency_free: bool = False
    whole: float = 0.0
    tie: float = 1e-9

    def __post_init__(self) -> None:
        if self.bucketed and self.latency_free:
            raise ValueError("bucketed and latency_free exclude each other: price either full buckets or no latency")
        if self.whole and not self.latency_free:
            raise ValueError(
                "whole counts latency apart from the bytes of a collective: set latency_free to price bytes without it"
            )

    @cached_property
    def _by_axes(self) -> dict[Axes, float]:
        return {(): 1.0} | dict(self.weights)

    def factor(self, axes: Axes) -> float:
        """Return the factor of seconds over `axes`."""
        return self._by_axes.get(axes, self.weight)


class StepPrices:
    """The prices of single steps on a cluster."""

    def __init__(self, cluster: Cluster, pricing: Pricing) -> None:
        self.cluster, self.pricing = cluster, pricing
        self._copying = [op_rate(device, COPY, "float32") for device in cluster.kinds_used]

    def weighted(self, step: Step, global_bytes: float) -> float:
        """Return the weighted seconds of a step on a value of `global_bytes` bytes, by its cheapest method."""
        price = self.pricing.factor(stream_of(step)) * self.seconds(step, global_bytes) + self.pricing.tie
        return price + self.pricing.whole * self.least_seconds(step, global_bytes) if self.pricing.whole else price

    def seconds(self, step: Step, global_bytes: float) -> float:
        """Return the seconds of a step by its cheapest method, without weights."""
        mesh = self.cluster.mesh
        if step.kind is CollectiveKind.PARTIAL:
            moved = handled_share(step, mesh) * global_bytes
            return max(rate.seconds(0.0, moved) for rate in self._copying)
        return min(
            self._carried_out(step, method, handled_share(step, mesh, method) * global_bytes)
            for method in self._methods(step)
        )

    def least_seconds(self, step: Step, global_bytes: float) -> float:
        """Return the least seconds of a step that sends bytes, alone or in a bucket; 0 for a step that sends none."""
        if step.kind.is_local:
            return 0.0
        return min(
            self.cluster.collective_time(step.kind, step.axes, method).least_from(
                handled_share(step, self.cluster.mesh, method) * global_bytes
            )
            for method in self._methods(step)
        )

    def _methods(self, step: Step) -> tuple[Method, ...]:
        """Return the methods to price: all of them for a bound, since uneven values may use other methods."""
        if not self.pricing.latency_free or step.kind.is_local or step.kind is CollectiveKind.ALL_REDUCE:
            return methods_of(self.cluster, step)
        methods: tuple[Method, ...] = ("flat", "padded")
        if is_gather_or_scatter(step):
            methods = (*methods, "grouped_broadcast")
        return (*methods, "hierarchical") if has_hierarchy(self.cluster, step) else methods

    def _carried_out(self, step: Step, method: Method, handled: float) -> float:
        time = self.cluster.collective_time(step.kind, step.axes, method)
        if self.pricing.latency_free:
            return time.least_per_byte * handled
        if self.pricing.bucketed:
            return time.per_byte_at(bucket_bytes(self.cluster, step.kind, step.axes)) * handled
        return time.seconds(handled)


def stream_of(step: Step) -> Axes:
    """Return the axes whose links a step occupies; a device does local steps by itself and occupies none."""
    return () if step.kind.is_local else step.axes
