"""AMP's trials as plans of this compiler: the published settings, imported, pinned and scheduled, and outlines."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from _outline import Outline, Stretch, outline_of
from _plain_plans import pins_of
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
    A model as AMP ran it.

    Args:
        batch: number of samples of a step.
        make: function that makes the training step. If its argument is true, attention writes out its scores.
        layer_at: function from a slot of AMP's to our number of its layer.
        written_out: whether simulated programs write out the scores. If heads have the size of the calibration's heads,
            a fitted rate of attention replaces them.
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
    # Bicubic interpolation ran as one kernel but is imported as about 250 small ops; "nearest" is one kernel too.
    growth: tuple[Growth, ...] = ("nearest", "nearest", "shuffle", "shuffle", "shuffle")
    step = transgan_step(TransGANConfig(growth=growth), batch=64)
    return replace(step, model=_with_scores(step.model)) if written_out else step


def _with_scores(make: Any) -> Callable[[], nn.Module]:
    def make_model() -> nn.Module:
        model: nn.Module = make()
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.form = "decomposed"
        return model

    return make_model


def _layer_of_gpt2(slot: int) -> int:
    """
    Map a slot to our two embeddings, 24 blocks, the last norm and the projection to the vocabulary.

    AMP's slots are an embedding and an empty slot, the blocks, two empty slots, the projection, and an empty slot.
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
    The parallelism of a step.

    Args:
        micro_batch: number of samples of a micro-batch on a rank.
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
        """Return the number of stages."""
        return len(self.begins)

    @property
    def parts(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.workload.batch // (self.data * self.micro_batch)

    @property
    def axes(self) -> dict[str, int]:
        """Return the sizes of the mesh axes, major to minor, without axes of size one."""
        sizes = {"pipe": self.pipe, "data": self.data, "tensor": self.tensor}
        return {name: size for name, size in sizes.items() if size > 1}


@dataclass(frozen=True)
class Trial:
    """
    A published run.

    Args:
        seconds: measured seconds of the step.
        theirs: seconds of the step that AMP predicts, or 0.
        method: `AMP` or `Megatron`, whichever proposed the run, or empty if no table tells.
    """

    setting: str
    setup: Setup
    seconds: float
    theirs: float = 0.0
    method: str = ""


def read_trials(path: Path, *, failed: bool = False) -> list[Trial]:
    """Read the runs with a measured time, or the failed runs, from a file of AMP's trials."""
    trials: list[Trial] = []
    for row in csv.DictReader(path.read_text().splitlines()):
        seconds = float(row["measured_s"] or "nan")
        workload = TRANSGAN_RUN if row["setting"] == "het_model" else GPT2_RUN
        # Table 10 lists one and two as numbers of stages where the cuts make two and four; the cuts decide here.
        cuts = tuple(map(int, row["layer_cuts"].split()))
        begins = (0, *map(workload.layer_at, cuts[1:-1]))
        tensor = int(row["tensor_par"])
        data = int(row.get("data_par") or RANKS // (tensor * len(begins)))
        setup = Setup(workload, int(row["microbatch"]), tensor, data, begins)
        if seconds == float("inf") if failed else seconds < float("inf"):
            theirs = float(row.get("predicted_s") or 0.0)
            trials.append(Trial(row["setting"], setup, seconds, theirs, row.get("method") or ""))
    return trials


class Outlines:
    """Makes outlines of plans, and keeps them in a file if one is given."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[object, Outline] = {}
        if file is not None and file.exists():
            self._known = pickle.loads(file.read_bytes())

    def of(self, setup: Setup) -> Outline:
        """Return the outline of a plan as AMP's DeepSpeed ran it."""
        key = (setup.workload.name, setup.micro_batch, setup.tensor, setup.data, setup.begins)
        if key not in self._known:
            module = planned(setup, written_out=setup.workload.written_out)
            (func,) = step_functions(module)
            self._known[key] = outline_of(module, func)
            if self._file is not None:
                self._file.write_bytes(pickle.dumps(self._known))
        return as_run(self._known[key])


@cache
def imported(workload: Workload, *, written_out: bool = False) -> ModuleOp:
    """Import a model at AMP's sizes, and prepare it for the passes that decide."""
    module = import_training_step(workload.make(written_out))
    run_pipeline(Context(), module, "prepare", verify_each=False)
    return module


def planned(setup: Setup, *, written_out: bool = False) -> ModuleOp:
    """Return the scheduled step on a nominal cluster that only provides the mesh."""
    axes = tuple(setup.axes.items())
    module = _searched(setup.workload, axes, setup.begins, written_out).clone()
    passes = f"split-batch{{parts={setup.parts}}},communicate,schedule-pipeline{{schedule=1f1b}},plan-transfers"
    run_pipeline(Context(), module, passes, verify_each=False)
    return module


@lru_cache(maxsize=4)
def _searched(
    workload: Workload, axes: tuple[tuple[str, int], ...], begins: tuple[int, ...], written_out: bool
) -> ModuleOp:
    """Return the step in its stages, with the signatures of its degrees of parallelism."""
    module = imported(workload, written_out=written_out).clone()
    mesh = Mesh.of(**dict(axes))
    device = Device("nominal", (("float32", 1e13),), 1e12, 1e15)
    links = tuple(Link(axis, 0.0, 1e-10) for axis in mesh.names)
    add_cluster(module, Cluster("amp", mesh, (device,), (0,) * RANKS, links))
    presets = (("dp", "data"), ("tp", "tensor"))
    pins = pins_of(*((preset, (axis,)) for preset, axis in presets if axis in mesh.names))
    passes = Pipeline.of(
        PartitionStagesPass(len(begins), begins=",".join(map(str, begins))),
        SearchStrategyPass("fixed", pins or None),
    )
    run_pipeline(Context(), module, passes, verify_each=False)
    return module


def as_run(outline: Outline) -> Outline:
    """
    Return the step as AMP's DeepSpeed ran it: in half precision except the update, and all gradients reduced at once.
    """
    stages = tuple(
        replace(stage, stretches=tuple(_as_run(stretch) for stretch in stage.stretches)) for stage in outline.stages
    )
    crossings = tuple(
        replace(crossing, edges=tuple((sender, receiver, size / 2) for sender, receiver, size in crossing.edges))
        for crossing in outline.crossings
    )
    return Outline(stages, crossings)


def _as_run(stretch: Stretch) -> Stretch:
    works = tuple((work if work.family == "update" else halved(work), count) for work, count in stretch.works)
    buckets: dict[tuple[str, ...], float] = {}
    others: list[tuple[CollectiveWork, int]] = []
    for collective, count in stretch.communications:
        if collective.kind is CollectiveKind.ALL_REDUCE and "data" in collective.axes:
            buckets[collective.axes] = buckets.get(collective.axes, 0.0) + count * collective.whole_bytes / 2
        else:
            others.append((replace(collective, whole_bytes=collective.whole_bytes / 2), count))
    reduced = ((CollectiveWork(CollectiveKind.ALL_REDUCE, axes, size), 1) for axes, size in buckets.items())
    return Stretch(works, (*others, *reduced))


def halved(work: OpWork) -> OpWork:
    """Return the work of an op in half precision."""
    return replace(work, dtype="float16", bytes=work.bytes / 2)


Constants = tuple[tuple[str, float], ...]
"""Constants of a device or of the wires of a host, by name."""


@dataclass(frozen=True)
class Testbed:
    """
    Four hosts of four devices.

    Args:
        devices: constants of the devices of each host.
        networks: constants of the wires of each host: inside, and of its NIC.
    """

    devices: tuple[Constants, ...]
    networks: tuple[Constants, ...]
    overhead: float = 0.0

    def cluster(self, axes: Mapping[str, int]) -> Cluster:
        """Return the cluster with a mesh of these axes."""
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
    """Return a kind of device."""
    flops, bandwidth, launch = (constants[name] for name in ("flops", "bandwidth", "launch"))
    sizes = [constants["half size"] * 2.0**i for i in range(-8, 12, 2)]
    curve = tuple((size, size / (size + constants["half size"])) for size in sizes)
    rates = (
        OpRate("contractions", "float16", flops, bandwidth, launch, curve),
        OpRate("attention", "float16", constants["attention"], bandwidth, launch),
        OpRate("", "", flops, bandwidth, launch),
    )
    return Device("gpu", (("float16", flops),), bandwidth, 16e9, launch, rates, overhead=overhead)
