"""
Describe emulated clusters, and make their cluster files from short measurements.

Every rank emulates a device that is slower than a core, so that two cores have room for the ranks of all hosts. The
rates of links are known, because the network namespaces limit them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.cluster_file import parse_cluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.models.vgg import VGGConfig, vgg_step
from shardwright.models.vit import ViTConfig, vit_step

_GPT2 = GPT2Config(layers=2, width=256, heads=4, vocabulary=512, positions=64)

INSIDE, BETWEEN = "inside", "between"
"""The names of the network levels inside hosts and between hosts."""


@dataclass(frozen=True)
class Case:
    """
    A step and an emulated cluster.

    Args:
        rates: Mbit/s that each host sends and receives; the value is None if the case has one host.
        part: ranks that a person would choose if the others were to idle.
        slower: factors by rank, for ranks that compute slower than the others.
    """

    name: str
    step: Callable[[], TrainingStep]
    rates: tuple[int | None, ...]
    ranks_each: int
    part: tuple[int, ...]
    slower: Mapping[int, float] = field(default_factory=dict[int, float])

    @property
    def ranks(self) -> int:
        return len(self.rates) * self.ranks_each

    @property
    def most_gain(self) -> float:
        """Return the step with even shares over the step with shares by speed, if only computation takes time."""
        factors = [self.slower.get(rank, 1.0) for rank in range(self.ranks)]
        return max(factors) * statistics.mean(1.0 / factor for factor in factors)


CASES: tuple[Case, ...] = (
    Case("two hosts of two", partial(gpt2_step, _GPT2, batch=16, length=64), (40, 40), 2, (0, 1)),
    Case("a far host of three", partial(mlp_step, (256, 1024, 1024, 256), batch=1024), (80, 16, 80), 2, (0, 1, 4, 5)),
    Case("four at 8 Mbit/s", partial(mlp_step, (512, 1024, 1024, 16), batch=128), (8,) * 4, 1, (0, 1)),
    Case("one 50 times slower", partial(mlp_step, (256, 512, 512, 64), batch=512), (None,), 4, (0, 1, 3), {2: 50.0}),
)
"""Three clusters with unequal links, and one host with a slow rank."""

_STEPS: Mapping[str, Callable[[], TrainingStep]] = {
    "mlp": partial(mlp_step, (256, 512, 512, 64), batch=512),
    "mlp of few rows": partial(mlp_step, (256, 512, 512, 64), batch=64),
    "wide mlp": partial(mlp_step, (512, 1024, 1024, 16), batch=128),
    "gpt2": partial(gpt2_step, _GPT2, batch=16, length=64),
    "vit": partial(vit_step, ViTConfig(layers=2, width=192, heads=3, image=64, patch=8, classes=100), batch=24),
    "vgg": partial(vgg_step, VGGConfig((1, 1, 1), (16, 32, 64), hidden=256, image=32, classes=10), batch=48),
}

SLOW_RANK: tuple[Case, ...] = tuple(
    Case(f"{name}, one {times} times slower", step, (None,), 4, (0, 1, 3), {2: float(times)})
    for name, step in _STEPS.items()
    for times in (2, 4)
)
"""Steps on one host of four ranks, where one rank is two or four times slower."""


@dataclass(frozen=True)
class Measured:
    """
    The results of short measurements: FLOP/s of a small matrix product by rank, latencies of small messages by level,
    bytes/s between two ranks of a host, and the shares of the bandwidth that collectives reach, by level.
    """

    flops: tuple[float, ...]
    latency: Mapping[str, float]
    bandwidth: float
    efficiency: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])


def cluster_of(case: Case, device: Device, measured: Measured) -> Cluster:
    """Return the emulated cluster, from the profiled device of a rank at the usual speed."""
    mesh = f'"node={len(case.rates)}", "gpu={case.ranks_each}"'
    if 1 in (len(case.rates), case.ranks_each):
        mesh = f'"gpu={case.ranks}"'
    lines = ["version = 3", f'name = "{case.name.replace(" ", "-")}"', f"mesh = [{mesh}]"]
    for kind in ("usual", "slow"):
        lines += [f"[device.{kind}]", "flops = { float32 = 1e9 }", "memory_bandwidth = 1e9", 'memory = "4GiB"']
    for rate in case.rates:
        lines += ["[[host]]", f"devices = {case.ranks_each}", 'device = "usual"']
        lines += [f'inside = "{INSIDE}"'] if case.ranks_each > 1 else []
        lines += [f'nic = "{BETWEEN}{rate}"'] if rate is not None else []
    if case.ranks_each > 1:
        lines += _level(INSIDE, measured.bandwidth, measured, INSIDE)
    for rate in dict.fromkeys(rate for rate in case.rates if rate is not None):
        lines += _level(f"{BETWEEN}{rate}", rate * 1e6 / 8, measured, BETWEEN)
    cluster = parse_cluster("\n".join(lines), case.name)
    usual = replace(device, kind="usual", memory=4.0 * 2**30)
    if not case.slower:
        return replace(cluster, devices=(usual,))
    fast = statistics.median(rate for rank, rate in enumerate(measured.flops) if rank not in case.slower)
    slow = statistics.median(measured.flops[rank] for rank in case.slower)
    kinds = (usual, slowed(usual, "slow", fast / slow))
    placement = tuple(int(rank in case.slower) for rank in range(case.ranks))
    return replace(cluster, devices=kinds, placement=placement)


def _level(name: str, bandwidth: float, measured: Measured, key: str) -> Sequence[str]:
    lines = [f"[level.{name}]", f"latency = {measured.latency[key]!r}", f"bandwidth = {bandwidth!r}"]
    if efficiency := measured.efficiency.get(key):
        lines.append("efficiency = { " + ", ".join(f"{kind} = {part!r}" for kind, part in efficiency.items()) + " }")
    return lines


def slowed(device: Device, kind: str, times: float) -> Device:
    """Return a device with ops that take `times` as long. The overhead of a step stays, because only ops are slowed."""
    rates = tuple(
        replace(rate, flops=rate.flops / times, bandwidth=rate.bandwidth / times, launch=rate.launch * times)
        for rate in device.rates
    )
    flops = tuple((dtype, rate / times) for dtype, rate in device.flops)
    table = tuple((key, seconds * times) for key, seconds in device.table)
    bandwidth, launch = device.memory_bandwidth / times, device.launch * times
    return replace(device, kind=kind, flops=flops, memory_bandwidth=bandwidth, launch=launch, rates=rates, table=table)
