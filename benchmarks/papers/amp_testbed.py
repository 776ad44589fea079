"""
AMP's testbeds: constants of a T4 and its wires that are fitted to measured runs, and of a V100 that follow from them.

A V100 is the fitted T4 scaled by the ratios of data sheets, and corrected by AMP's profile of single layers. A NIC has
its nominal bandwidth, or the rate that sockets reach on the T4s if that is less. No constant is fitted to a run on
V100s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from _fit_constants import Constant, fit_constants
from _outline import Outline, outline_seconds
from _steps import planned
from amp_plans import GPT2_RUN, HOST, RANKS, TRANSGAN_RUN, Setup, Workload, halved, prepared

from shardwright.dialects.step import BACKWARD
from shardwright.dialects.train import is_update
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import OpWork, op_seconds
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Host, Level, Topology
from shardwright.passes.analysis.compute import op_work
from shardwright.passes.stages.stage_costs import whole_signature
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import step_views

Constants = Mapping[str, float]
"""Constants of a device and of the wires of its host, by name."""

MEMORY = 16e9
"""Memory of a T4 and of a V100 in bytes."""

EXPECTED = (
    Constant("flops", 30e12, 2.0),
    Constant("half size", 2e9, 10.0),
    Constant("attention", 5e12, 4.0),
    Constant("bandwidth", 240e9, 1.5),
    Constant("launch", 10e-6, 3.0),
    Constant("pcie", 6e9, 2.5),
    Constant("nic", 5e9, 2.0),
    Constant("latency", 30e-6, 3.0),
)
"""
Expected constants with factors of uncertainty. A T4 gets less than the 65 TFLOP/s and 320 GB/s of its data sheet, since
they are never reached; the NIC of a G4dn.12xlarge gets its 50 Gbit/s. `half size` is the size in FLOPs of a matrix
product that runs at half its rate. `attention` is a low rate in FLOP/s, since AMP's attention wrote out its scores and
ours is fused.
"""

NOMINAL = 50e9 / 8
"""Bandwidth in bytes/s that AMP assumes for all wires of the T4s."""

PROFILED = (
    (GPT2_RUN, 10, 3.896e-3),
    (TRANSGAN_RUN, 8, 2.041e-3),
    (TRANSGAN_RUN, 25, 3.998e-3),
)
"""
AMP's profile of a V100: a model, our number of a block, and the seconds of its forward for one sample, the median over
all equal blocks.
"""

BY_DATA_SHEET = {"flops": 125 / 65, "bandwidth": 900 / 320, "attention": 900 / 320, "half size": 125 / 65, "launch": 1}
"""Ratios of a V100 to a T4. Memory bounds attention that writes out scores; the host bounds launches."""

UNSURE = {"flops": 1.5, "bandwidth": 1.2, "attention": 1.5, "half size": 1.5, "launch": 10.0}
"""Factors of uncertainty of the constants. A profiled layer runs alone, so Python's launch times are exposed."""


@dataclass(frozen=True, eq=False)
class Testbed:
    """The constants of each of four hosts of four devices."""

    hosts: tuple[Constants, ...]

    def cluster(self, mesh: Mesh) -> Cluster:
        levels = tuple(
            Level(f"{wire}{number}", host["latency"], host[wire])
            for number, host in enumerate(self.hosts)
            for wire in ("pcie", "nic")
        )
        hosts = tuple(Host(HOST, f"pcie{number}", f"nic{number}") for number in range(len(self.hosts)))
        placement = tuple(rank // HOST for rank in range(RANKS))
        return Cluster("amp", mesh, tuple(map(device, self.hosts)), placement, (), topology=Topology(levels, hosts))

    def in_float32(self, mesh: Mesh) -> Cluster:
        """
        Return a cluster that runs a float32 program in the time that `cluster` takes in half precision.

        Wires and memory get twice the rate, since float32 has twice the bytes. Updates are in float32 on both.
        """
        cluster = self.cluster(mesh)
        assert cluster.topology is not None
        levels = tuple(replace(level, bandwidth=2 * level.bandwidth) for level in cluster.topology.levels)
        kinds = tuple(map(_in_float32, cluster.devices))
        return replace(cluster, devices=kinds, topology=replace(cluster.topology, levels=levels))


def device(constants: Constants) -> Device:
    flops, bandwidth, launch = (constants[name] for name in ("flops", "bandwidth", "launch"))
    sizes = [constants["half size"] * 2.0**i for i in range(-8, 12, 2)]
    curve = tuple((size, size / (size + constants["half size"])) for size in sizes)
    rates = (
        OpRate("contractions", "float16", flops, bandwidth, launch, curve),
        OpRate("attention", "float16", constants["attention"], bandwidth, launch),
        OpRate("", "", flops, bandwidth, launch),
    )
    return Device("gpu", (("float16", flops),), bandwidth, 16e9, launch, rates)


def _in_float32(device: Device) -> Device:
    (flops,) = (rate for _, rate in device.flops)
    rates = tuple(replace(rate, dtype="", bandwidth=2 * rate.bandwidth) for rate in device.rates)
    update = OpRate("update", "", flops, device.memory_bandwidth, device.launch)
    bandwidth = 2 * device.memory_bandwidth
    return replace(device, flops=(("float32", flops),), memory_bandwidth=bandwidth, rates=(*rates, update))


def testbeds(t4: Constants) -> dict[str, dict[str, Testbed]]:
    """Return the testbeds of AMP's settings, by the order of their hosts; the first order is AMP's."""
    # NVLink reaches the same share of its nominal bandwidth as PCIe. The NICs of the T4s reach more than 10 Gbit/s, so
    # sockets can saturate the slower NIC.
    nominal = {"pcie": t4["pcie"] / NOMINAL * 170e9 / 8, "nic": min(t4["nic"], 10e9 / 8)}
    p3 = {**t4, **v100(t4), **nominal}
    return {
        "homogeneous": {"equal": Testbed((t4,) * 4)},
        "het_cluster": {"V100s first": Testbed((p3, p3, p3, t4)), "T4s first": Testbed((t4, p3, p3, p3))},
        "het_model": {"equal": Testbed((p3,) * 4)},
    }


def predicted(t4: Constants, runs: Sequence[tuple[Setup, Outline]]) -> list[float]:
    """Return the predicted seconds of steps on four hosts of T4s."""
    testbed = Testbed((t4,) * 4)
    return [outline_seconds(outline, testbed.cluster(setup.mesh)) for setup, outline in runs]


def calibrated(runs: Sequence[tuple[Setup, Outline]], measured: Sequence[float]) -> dict[str, float]:
    """Return the constants that explain the measured times of runs on T4s best."""
    return dict(fit_constants(lambda constants: predicted(constants, runs), measured, EXPECTED).constants)


def v100(t4: Constants) -> dict[str, float]:
    """Return the constants of a V100: a T4's, scaled by the ratios of data sheets and fitted to the profile."""
    expected = [Constant(name, t4[name] * ratio, UNSURE[name]) for name, ratio in BY_DATA_SHEET.items()]
    measured = [seconds for _, _, seconds in PROFILED]
    return dict(fit_constants(profile_of, measured, expected).constants)


def profile_of(constants: Constants, *, backward: bool = False) -> list[float]:
    """Return the predicted seconds of one sample's forward or backward in each layer of `PROFILED`."""
    gpu = device(constants)
    return [
        sum(count * op_seconds(gpu, work) for work, count in _works(workload, layer, backward).items())
        for workload, layer, _ in PROFILED
    ]


def profile_rows(of_v100: Constants) -> list[dict[str, Any]]:
    """Return a row for each profiled layer, with forward as measured and simulated, and backward as simulated."""
    rows: list[dict[str, Any]] = []
    times = zip(PROFILED, profile_of(of_v100), profile_of(of_v100, backward=True), strict=True)
    for (workload, layer, measured), forward, backward in times:
        row = {"model": workload.name, "layer": layer, "forward ms, measured": 1e3 * measured}
        row |= {"forward ms": 1e3 * forward, "backward ms": 1e3 * backward, "backward / forward": backward / forward}
        rows.append(row)
    return rows


@cache
def _works(workload: Workload, layer: int, backward: bool) -> Mapping[OpWork, int]:
    """Return the counts of the works of one sample in a layer's forward or backward, in half precision."""
    device, link = Device("any", (("float32", 1e12),), 1e12, 1e15), Link("gpu", 0.0, 1e-10)
    step = prepared(workload, written_out=workload.written_out).decomposed
    ((view, _),) = step_views(planned(step, Cluster("alone", Mesh.of(gpu=1), (device,), (0,), (link,))))
    layers, part = find_layers(view), 1 / workload.batch
    ops = [op for op in view.ops if layers.of.get(op) == layer and not is_update(op)]
    ops = [op for op in ops if (BACKWARD in op.attributes) == backward]
    works = (op_work(op, whole_signature(op), Mesh(()), keyed=False) for op in ops)
    return Counter(halved(replace(work, flops=work.flops * part, bytes=work.bytes * part)) for work in works)
