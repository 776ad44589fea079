"""
Costs of stages for `partition-stages`: compute and communication seconds for one micro-batch, by range of layers.

roofline    each op of a micro-batch at the joint speed of its stage's devices, as if they shared it by speed without
            communication; values between stages at the alpha and beta of the link to the neighbour, once per stage
            that needs them
amp         AMP (supplement 6.2): forward seconds of a sample on the mean device, backward counted as two
            forwards; values that the next stage needs at the bandwidth of the link, without latency
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from xdsl.ir import SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, shape_of, value_bytes
from ...dialects.step import BACKWARD
from ...ir.cluster import Cluster, Device
from ...ir.mesh import Mesh
from ...ir.op_cost import OpWork, op_seconds
from ...ir.plain import Plain
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ...ir.text_file import read_text
from ...ir.topology import Route
from ..analysis.compute import op_work
from ..analysis.fusion import least_parts
from ..step.layers import Layers
from ..step.step_view import StepView, batch_rows


@dataclass(frozen=True)
class Crossing:
    """A value used in other layers than its own, with its layer, the layers of its users, its bytes, and its pass."""

    value: SSAValue
    made: int
    used: frozenset[int]
    bytes: int
    backward: bool

    def reaches(self, first: int, end: int) -> bool:
        """Return whether a stage with the layers `first` .. `end - 1` needs the value from another stage."""
        return not first <= self.made < end and any(first <= layer < end for layer in self.used)


@dataclass(frozen=True, eq=False)
class LayerWork:
    """The work of the layers of a step and the values that cross between them, computed once for all divisions."""

    view: StepView
    layers: Layers

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """The values that are used in other layers than the layer that produces or stores them."""
        values: list[SSAValue] = [item.argument for item in self.view.inputs]
        values += [result for op in self.view.ops for result in op.outs]
        crossings: list[Crossing] = []
        for value in values:
            own = self.layers.of_value(value)
            used = frozenset(self.layers.of[use.operation] for use in value.uses if use.operation in self.layers.of)
            if own is not None and used - {own}:
                backward = isinstance(value.owner, ComputeOp) and BACKWARD in value.owner.attributes
                crossings.append(Crossing(value, own, used, value_bytes(value), backward))
        return tuple(crossings)

    def reaching(self, first: int, end: int, *, backward: bool) -> tuple[int, int]:
        """Return the number and the bytes of the values that layers `first` .. `end - 1` need from other layers."""
        if (key := (first, end, backward)) not in self._reaching:
            sizes = [c.bytes for c in self.crossings if c.backward == backward and c.reaches(first, end)]
            self._reaching[key] = len(sizes), sum(sizes)
        return self._reaching[key]

    @cached_property
    def _reaching(self) -> dict[tuple[int, int, bool], tuple[int, int]]:
        return {}

    def seconds(self, device: Device, parts: int) -> Sequence[float]:
        """Return by layer the seconds that one of `parts` even parts of the batch's work takes on a device."""
        if (key := (device, parts)) not in self._known:
            seconds = [0.0] * len(self.layers.names)
            for work, layers in self._works:
                time = op_seconds(device, replace(work, flops=work.flops / parts, bytes=work.bytes / parts))
                for layer, count in layers.items():
                    seconds[layer] += count * time
            self._known[key] = seconds
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[Device, int], Sequence[float]]:
        return {}

    @cached_property
    def _works(self) -> Sequence[tuple[OpWork, Counter[int]]]:
        """The work of each kind of op on the whole batch, with the number of such ops by layer."""
        kinds: dict[object, tuple[OpWork, Counter[int]]] = {}
        parts = least_parts(self.view.func)
        for op in self.view.ops:
            if op in self.layers.of and not train.is_update(op):
                key = op.use_key(), parts.get(op)
                if key not in kinds:
                    work = op_work(op, whole_signature(op), Mesh(()), keyed=False, part=parts.get(op))
                    kinds[key] = work, Counter[int]()
                kinds[key][1][self.layers.of[op]] += 1
        return list(kinds.values())


@dataclass(frozen=True)
class StageCosts:
    """
    Costs of stages with given numbers of consecutive ranks.

    Args:
        work: the layers of the step.
        counts: number of ranks, by stage.
        micro_batches: number of micro-batches of a batch.
        chunks: number of chunks of layers of each stage; consecutive chunks belong to consecutive stages, in rounds.
        launches: whether every device of a stage launches every op; by default the devices share one launch.
    """

    work: LayerWork
    cluster: Cluster
    counts: tuple[int, ...]
    micro_batches: int
    chunks: int = 1
    launches: bool = False

    def compute(self, chunk: int, first: int, end: int) -> float:
        """Return the seconds of the layers `first` .. `end - 1` on the devices of a chunk's stage."""
        sums = self._sums[chunk % len(self.counts)]
        return sums[end] - sums[first]

    def communicate(self, chunk: int, first: int, end: int) -> float:
        """Return the seconds of transfers to a chunk from its neighbours."""
        return self._received(chunk - 1, first, end, backward=False) + self._received(chunk, first, end, backward=True)

    def _received(self, boundary: int, first: int, end: int, *, backward: bool) -> float:
        """Return the seconds of transfers over the boundary between chunk `boundary` and the next chunk."""
        if not 0 <= boundary < len(self.counts) * self.chunks - 1:
            return 0.0
        if (at := boundary % len(self.counts)) not in self._links:
            self._links[at] = link_between(self.cluster, sum(self.counts[: at + 1]))
        alpha, beta = self._links[at]
        count, size = self.work.reaching(first, end, backward=backward)
        return count * alpha + beta * size / self.micro_batches

    def crossing(self, value: Crossing, source: int, target: int) -> float:
        """Return the seconds that one micro-batch of a value takes from one stage to another."""
        if (pair := (min(source, target), max(source, target))) not in self._routes:
            ends = [sum(self.counts[: stage + 1]) for stage in pair]
            self._routes[pair] = self.cluster.route(ends[0] - 1, ends[1] - self.counts[pair[1]])
        route = self._routes[pair]
        return route.latency + value.bytes / self.micro_batches / route.bandwidth

    @cached_property
    def _links(self) -> dict[int, tuple[float, float]]:
        """Alpha and beta of the link behind each stage, cached."""
        return {}

    @cached_property
    def _routes(self) -> dict[tuple[int, int], Route]:
        """Routes between stages, cached."""
        return {}

    @cached_property
    def _sums(self) -> tuple[tuple[float, ...], ...]:
        """The seconds of the first 0, 1, ... layers on each stage's devices."""
        sums: list[tuple[float, ...]] = []
        begin = 0
        for count in self.counts:
            kinds = Counter(self.cluster.placement[begin : begin + count])
            parts = count if self.launches else 1
            times = [(self.layer_seconds(self.cluster.devices[kind], parts), n) for kind, n in kinds.items()]
            by_layer = [
                parts / sum(n / max(seconds[layer], 1e-12) for seconds, n in times)
                for layer in range(len(self.work.layers.names))
            ]
            sums.append(tuple(itertools.accumulate(by_layer, initial=0.0)))
            begin += count
        return tuple(sums)

    def layer_seconds(self, device: Device, count: int) -> Sequence[float]:
        """Return by layer the seconds of a device for its part of a micro-batch, if `count` devices share it evenly."""
        return self.work.seconds(device, self.micro_batches * count)


@dataclass(frozen=True)
class AmpCosts(StageCosts):
    """
    The costs of AMP.

    Args:
        forward: forward seconds of a sample, by layer; by default from the roofline.
    """

    forward: tuple[float, ...] | None = None

    def layer_seconds(self, device: Device, count: int) -> Sequence[float]:
        """Return the seconds of the mean device, whatever the device."""
        if self.forward is not None:
            samples = (batch_rows(self.work.view.inputs) or 1) / self.micro_batches
            return [3.0 * samples * seconds / count for seconds in self.forward]
        ranks = range(self.cluster.mesh.device_count)
        by_rank = [super(AmpCosts, self).layer_seconds(self.cluster.device(rank), 1) for rank in ranks]
        return [sum(seconds) / len(by_rank) / count for seconds in zip(*by_rank, strict=True)]

    def communicate(self, chunk: int, first: int, end: int) -> float:
        """Return the seconds of transfers from a stage of one chunk to the next stage."""
        if chunk == len(self.counts) - 1:
            return 0.0
        _, beta = link_between(self.cluster, sum(self.counts[: chunk + 1]))
        left = (c for c in self.work.crossings if not c.backward and c.made < end and max(c.used) >= end)
        return sum(beta * c.bytes / self.micro_batches for c in left)


def read_forward_seconds(path: str | Path) -> tuple[float, ...]:
    """
    Return AMP's profile of a model from a JSON file with `forward_s`, the forward seconds of a sample by layer.

    Raises ValueError with the name of the file and the error.
    """
    try:
        profile: Plain = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot read the costs: {error}") from error
    listed = profile.get("forward_s") if isinstance(profile, dict) else None
    seconds = [x for x in listed if isinstance(x, int | float)] if isinstance(listed, list) else []
    if not isinstance(listed, list) or len(seconds) < len(listed):
        raise ValueError(f'{path}: expected {{"forward_s": [seconds of each layer, ...]}}')
    return tuple(map(float, seconds))


def link_between(cluster: Cluster, rank: int) -> tuple[float, float]:
    """Return (alpha, beta) of the link between `rank` and the rank before it; the first rank comes after the last."""
    route = cluster.route(rank - 1, rank % cluster.mesh.device_count)
    return route.latency, 1.0 / route.bandwidth


def whole_signature(op: ComputeOp) -> Signature:
    """Return the signature of an op that is not split."""
    shardings = (tuple(Sharding.replicated(len(shape_of(v))) for v in values) for values in (op.args, op.outs))
    return Signature(*shardings)
