"""AMP's trials as plans of ours: the published settings, imported, pinned and scheduled, and their outlines."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from _outline import Outline, Stretch, outline_of
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import OpWork
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Host, Level, Topology
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.transformer import SelfAttention
from shardwright.models.transgan import Growth, TransGANConfig, transgan_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.durations import CollectiveWork
from shardwright.passes.partition_stages import PartitionStagesPass
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import step_functions

RANKS, HOST, LAYERS = 16, 4, 24


@dataclass(frozen=True)
class Workload:
    """
    A workload is a model as AMP ran it.

    Args:
        batch: the samples of a step.
        make: makes its training step, with the scores of attention written out if the argument is true.
        layer_at: our number of the layer at one of AMP's slots.
        written_out: whether simulated programs contain these scores. A fitted rate of attention replaces them where
            heads have the size of the calibration's.
    """

    name: str
    batch: int
    make: Callable[[bool], TrainingStep]
    layer_at: Callable[[int], int]
    written_out: bool = False


def _gpt2(written_out: bool) -> TrainingStep:
    form = "decomposed" if written_out else "fused"
    config = GPT2Config(layers=LAYERS, width=1024, heads=16, vocabulary=52256, positions=1024, attention=form)
    return gpt2_step(config, batch=32, length=1024)


def _transgan(written_out: bool) -> TrainingStep:
    # A bicubic interpolation is imported as some 250 small ops, and was one kernel; so is repeating pixels.
    growth: tuple[Growth, ...] = ("nearest", "nearest", "shuffle", "shuffle", "shuffle")
    step = transgan_step(TransGANConfig(growth=growth), batch=64)
    return replace(step, model=_with_scores(step.model)) if written_out else step


def _with_scores(make: Any) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        model: nn.Module = make()
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.form = "decomposed"
        return model

    return made


def _layer_of_gpt2(slot: int) -> int:
    """
    Map a slot to our two embeddings, 24 blocks, the last norm and the vocabulary's projection.

    AMP's slots are an embedding and an empty one, the blocks, two empty ones, the projection, an empty one.
    """
    return min(slot, 2 + LAYERS + (slot > 2 + LAYERS))


def _layer_of_transgan(slot: int) -> int:
    """
    Map a slot to our entry, positions and 12 blocks of the first grid, 4 empty grids, the last grid and the exit.

    AMP has three slots for the entry, 12 for blocks, 26 for growth of the grid, 12 for blocks and three for the exit.
    """
    if slot < 15:
        return max(slot - 1, 2)
    return max(slot - 22, 14) if slot < 53 else 31


GPT2_RUN = Workload("gpt2", 32, _gpt2, _layer_of_gpt2)
TRANSGAN_RUN = Workload("transgan", 64, _transgan, _layer_of_transgan, written_out=True)


@dataclass(frozen=True)
class Setup:
    """
    A setup decides how a step is run.

    Args:
        micro_batch: its samples on a rank.
        tensor, data: degrees of parallelism inside a stage.
        begins: our first layer of each stage.
    """

    workload: Workload
    micro_batch: int
    tensor: int
    data: int
    begins: tuple[int, ...]

    @property
    def pipe(self) -> int:
        """The number of stages."""
        return len(self.begins)

    @property
    def parts(self) -> int:
        """The micro-batches of a step."""
        return self.workload.batch // (self.data * self.micro_batch)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh, major to minor, without axes of one."""
        sizes = {"pipe": self.pipe, "data": self.data, "tensor": self.tensor}
        return {name: size for name, size in sizes.items() if size > 1}


@dataclass(frozen=True)
class Trial:
    """
    A trial is a published run.

    Args:
        micro_batch: its samples on a rank.
        cuts: the first slot of each stage, and the number of slots.
        seconds: the measured step.
        theirs: the step that AMP predicts, or 0.
        method: who proposed it, `AMP` or `Megatron`, where a table says so.
    """

    setting: str
    micro_batch: int
    tensor: int
    data: int
    pipe: int
    cuts: tuple[int, ...]
    seconds: float
    theirs: float = 0.0
    method: str = ""

    @property
    def setup(self) -> Setup:
        """Return our plan of the run."""
        workload = TRANSGAN_RUN if self.setting == "het_model" else GPT2_RUN
        begins = (0, *map(workload.layer_at, self.cuts[1:-1]))
        return Setup(workload, self.micro_batch, self.tensor, self.data, begins)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh, major to minor, without axes of one."""
        return self.setup.axes


def read_trials(path: Path, *, failed: bool = False) -> list[Trial]:
    """Read the runs with a measured time from a file of AMP's trials, or the failed runs."""
    found: list[Trial] = []
    for row in csv.DictReader(path.read_text().splitlines()):
        seconds = float(row["measured_s"] or "nan")
        cuts = tuple(map(int, row["layer_cuts"].split()))
        # Table 10 lists cuts into two and four stages beside the numbers one and two; the cuts decide here.
        tensor, pipe = int(row["tensor_par"]), len(cuts) - 1
        data = int(row.get("data_par") or RANKS // (tensor * pipe))
        theirs, method = float(row.get("predicted_s") or 0.0), row.get("method") or ""
        if seconds == float("inf") if failed else seconds < float("inf"):
            found.append(
                Trial(row["setting"], int(row["microbatch"]), tensor, data, pipe, cuts, seconds, theirs, method)
            )
    return found


def outlines(setups: Iterable[Setup], cache_file: Path | None) -> list[Outline]:
    """Make the outlines of plans, or take them from a file that has them."""
    known = _kept(cache_file)
    found: list[Outline] = []
    for setup in setups:
        key = (setup.workload.name, setup.micro_batch, setup.tensor, setup.data, setup.begins)
        if key not in known:
            module = planned(setup, written_out=setup.workload.written_out)
            (func,) = step_functions(module)
            known[key] = outline_of(module, func)
            if cache_file is not None:
                cache_file.write_bytes(pickle.dumps(known))
        found.append(known[key])
    return found


@cache
def _kept(cache_file: Path | None) -> dict[object, Outline]:
    """Read the outlines of earlier runs once; `outlines` adds to them."""
    if cache_file is None or not cache_file.exists():
        return {}
    return pickle.loads(cache_file.read_bytes())


@cache
def imported(workload: Workload, *, written_out: bool = False) -> ModuleOp:
    """Import a model at AMP's sizes, and prepare it for decisions."""
    module = import_training_step(workload.make(written_out))
    run_pipeline(Context(), module, "prepare", verify_each=False)
    return module


def planned(setup: Setup, *, written_out: bool = False) -> ModuleOp:
    """The scheduled step, on a cluster that only gives its mesh."""
    axes = tuple(setup.axes.items())
    module = _searched(setup.workload, axes, setup.begins, written_out).clone()
    passes = f"split-batch{{parts={setup.parts}}},communicate,schedule-pipeline{{schedule=1f1b}},plan-transfers"
    run_pipeline(Context(), module, passes, verify_each=False)
    return module


@lru_cache(maxsize=4)
def _searched(
    workload: Workload, axes: tuple[tuple[str, int], ...], begins: tuple[int, ...], written_out: bool
) -> ModuleOp:
    """The step in its stages, with the signatures that its degrees of parallelism ask for."""
    module = imported(workload, written_out=written_out).clone()
    mesh = Mesh.of(**dict(axes))
    device = Device("nominal", (("float32", 1e13),), 1e12, 1e15)
    links = tuple(Link(axis, 0.0, 1e-10) for axis in mesh.names)
    add_cluster(module, Cluster("amp", mesh, (device,), (0,) * RANKS, links))
    presets = [(preset, axis) for preset, axis in (("dp", "data"), ("tp", "tensor")) if axis in mesh.names]
    pins = "".join(f'[[pin]]\npreset = "{preset}"\naxes = ["{axis}"]\n' for preset, axis in presets)
    passes = Pipeline.of(
        PartitionStagesPass(len(begins), begins=",".join(map(str, begins))),
        SearchStrategyPass("fixed", pins or None),
    )
    run_pipeline(Context(), module, passes, verify_each=False)
    return module


def as_run(outline: Outline) -> Outline:
    """
    The step as AMP ran it, by DeepSpeed: in half precision but for the update, and all gradients reduced as one.
    """
    stages = tuple(
        replace(stage, stretches=tuple(_as_run(stretch) for stretch in stage.stretches)) for stage in outline.stages
    )
    crossings = tuple(
        replace(each, edges=tuple((sender, receiver, size / 2) for sender, receiver, size in each.edges))
        for each in outline.crossings
    )
    return Outline(stages, crossings)


def _as_run(stretch: Stretch) -> Stretch:
    works = tuple((work if work.family == "update" else halved(work), count) for work, count in stretch.works)
    buckets: dict[tuple[str, ...], float] = {}
    others: list[tuple[CollectiveWork, int]] = []
    for each, count in stretch.communications:
        if each.kind is CollectiveKind.ALL_REDUCE and "data" in each.axes:
            buckets[each.axes] = buckets.get(each.axes, 0.0) + count * each.whole_bytes / 2
        else:
            others.append((replace(each, whole_bytes=each.whole_bytes / 2), count))
    reduced = ((CollectiveWork(CollectiveKind.ALL_REDUCE, axes, size), 1) for axes, size in buckets.items())
    return Stretch(works, (*others, *reduced))


def halved(work: OpWork) -> OpWork:
    """Return the work of an op in half precision."""
    return replace(work, dtype="float16", bytes=work.bytes / 2)


Constants = tuple[tuple[str, float], ...]
"""By name, for a device or the wires of a host."""


@dataclass(frozen=True)
class Testbed:
    """
    Four hosts of four devices.

    Args:
        device: the constants of a kind of device, by host.
        network: those of the wires, by host: inside, and of its NIC.
    """

    devices: tuple[Constants, ...]
    networks: tuple[Constants, ...]
    overhead: float = 0.0

    def cluster(self, axes: Mapping[str, int]) -> Cluster:
        """With a mesh."""
        levels: list[Level] = []
        hosts: list[Host] = []
        for number, network in enumerate(map(dict, self.networks)):
            levels.append(Level(f"pcie{number}", network["latency"], network["pcie"]))
            levels.append(Level(f"nic{number}", network["latency"], network["nic"]))
            hosts.append(Host(HOST, f"pcie{number}", f"nic{number}"))
        kinds = tuple(device(dict(constants), self.overhead) for constants in self.devices)
        placement = tuple(rank // HOST for rank in range(RANKS))
        mesh = Mesh.of(**axes)
        return Cluster("amp", mesh, kinds, placement, (), topology=Topology(tuple(levels), tuple(hosts)))


def device(constants: Mapping[str, float], overhead: float) -> Device:
    """A kind of device."""
    flops, bandwidth, launch = (constants[name] for name in ("flops", "bandwidth", "launch"))
    sizes = [constants["half size"] * 2.0**i for i in range(-8, 12, 2)]
    curve = tuple((size, size / (size + constants["half size"])) for size in sizes)
    rates = (
        OpRate("contractions", "float16", flops, bandwidth, launch, curve),
        OpRate("attention", "float16", constants["attention"], bandwidth, launch),
        OpRate("", "", flops, bandwidth, launch),
    )
    return Device("gpu", (("float16", flops),), bandwidth, 16e9, launch, rates, overhead=overhead)
