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
    How the seconds of collectives count.

    weights       factors of those over exactly these axes (as `Step.axes` has them); `()` is what a device does by
                  itself, sums in place and zeros of partial values, which counts once where it is not named
    weight        the factor of all other axes
    bucketed      a collective costs what its bytes cost in a full bucket
    latency_free  its bytes cost the least that they can at any size: a lower bound, in whatever bucket they travel, and
                  in whatever way they do
    whole         where free of latency, the factor of the least that it can take, latency and all, in any bucket: it
                  counts besides, where nothing can go on before it is over
    tie           seconds added to every step, so that among equal paths the shorter one wins
    """

    weights: tuple[tuple[Axes, float], ...] = ()
    weight: float = 1.0
    bucketed: bool = False
    latency_free: bool = False
    whole: float = 0.0
    tie: float = 1e-9

    def __post_init__(self) -> None:
        if self.bucketed and self.latency_free:
            raise ValueError("collectives are priced either in full buckets or without latency, not both")
        if self.whole and not self.latency_free:
            raise ValueError(
                "the fixed time of a collective is counted apart from its bytes; price the bytes without latency"
            )

    @cached_property
    def _by_axes(self) -> dict[Axes, float]:
        return {(): 1.0} | dict(self.weights)

    def factor(self, axes: Axes) -> float:
        """What seconds over `axes` are multiplied by."""
        return self._by_axes.get(axes, self.weight)


class StepPrices:
    """The prices of single steps on a cluster."""

    def __init__(self, cluster: Cluster, pricing: Pricing) -> None:
        self.cluster, self.pricing = cluster, pricing
        self._copying = [op_rate(device, COPY, "float32") for device in cluster.kinds_used]

    def weighted(self, step: Step, global_bytes: float) -> float:
        """What a step on a value of `global_bytes` bytes counts, carried out in the cheapest way."""
        found = self.pricing.factor(stream_of(step)) * self.seconds(step, global_bytes) + self.pricing.tie
        return found + self.pricing.whole * self.least_seconds(step, global_bytes) if self.pricing.whole else found

    def seconds(self, step: Step, global_bytes: float) -> float:
        """The same at a factor of 1."""
        mesh = self.cluster.mesh
        if step.kind is CollectiveKind.PARTIAL:
            moved = handled_share(step, mesh) * global_bytes
            return max(rate.seconds(0.0, moved) for rate in self._copying)
        return min(
            self._carried_out(step, method, handled_share(step, mesh, method) * global_bytes)
            for method in self._methods(step)
        )

    def least_seconds(self, step: Step, global_bytes: float) -> float:
        """The least that a step takes by which bytes are sent, by itself or with others; 0 where none are."""
        if step.kind.is_local:
            return 0.0
        return min(
            self.cluster.collective_time(step.kind, step.axes, method).least_from(
                handled_share(step, self.cluster.mesh, method) * global_bytes
            )
            for method in self._methods(step)
        )

    def _methods(self, step: Step) -> tuple[Method, ...]:
        """The ways that count; a bound is of them all, since what does not divide evenly may travel in others."""
        if not self.pricing.latency_free or step.kind.is_local or step.kind is CollectiveKind.ALL_REDUCE:
            return methods_of(self.cluster, step)
        found: tuple[Method, ...] = ("flat", "padded")
        if is_gather_or_scatter(step):
            found = (*found, "grouped_broadcast")
        return (*found, "hierarchical") if has_hierarchy(self.cluster, step) else found

    def _carried_out(self, step: Step, method: Method, handled: float) -> float:
        time = self.cluster.collective_time(step.kind, step.axes, method)
        if self.pricing.latency_free:
            return time.least_per_byte * handled
        if self.pricing.bucketed:
            return time.per_byte_at(bucket_bytes(self.cluster, step.kind, step.axes)) * handled
        return time.seconds(handled)


def stream_of(step: Step) -> Axes:
    """The axes whose links a step occupies; none where a device does it by itself."""
    return () if step.kind.is_local else step.axes
