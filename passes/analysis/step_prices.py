"""What a search is told that single collectives cost: their seconds, or a linearisation of them, weighted by axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...ir.cluster import Cluster
from ...ir.collective_cost import Method, bucket_bytes, handled_share, methods_of
from ...ir.collectives import CollectiveKind, Step
from ...ir.op_cost import COPY, op_rate

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Pricing:
    """
    How the seconds of collectives count.

    weights       factors of those over exactly these axes (as `Step.axes` has them); `()` is what a device does by
                  itself, sums in place and zeros of partial values, which counts once where it is not named
    weight        the factor of all other axes
    bucketed      a collective costs what its bytes cost in a full bucket
    latency_free  its bytes cost the least that they can at any size: a lower bound, in whatever bucket they travel
    """

    weights: tuple[tuple[Axes, float], ...] = ()
    weight: float = 1.0
    bucketed: bool = False
    latency_free: bool = False

    def __post_init__(self) -> None:
        if self.bucketed and self.latency_free:
            raise ValueError("collectives are priced in full buckets or free of latency, not both")

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
        return self.pricing.factor(stream_of(step)) * self.seconds(step, global_bytes)

    def seconds(self, step: Step, global_bytes: float) -> float:
        """The same at a factor of 1."""
        mesh = self.cluster.mesh
        if step.kind is CollectiveKind.PARTIAL:
            moved = handled_share(step, mesh) * global_bytes
            return max(rate.seconds(0.0, moved) for rate in self._copying)
        return min(
            self._carried_out(step, method, handled_share(step, mesh, method) * global_bytes)
            for method in methods_of(self.cluster, step)
        )

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
