"""AMP's trials as plans of ours: the published settings, imported, pinned and scheduled, and their outlines."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from _outline import Outline, Stretch, outline_of
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import BEGIN, import_training_step
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import OpWork
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Host, Level, Topology
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.durations import CollectiveWork
from shardwright.passes.partition_stages import PartitionStagesPass
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import step_functions

RANKS, HOST, BATCH, LAYERS = 16, 4, 32, 24


@dataclass(frozen=True)
class Trial:
    """
    One published run: samples of a micro-batch, degrees of parallelism, first slots of stages, seconds, and those that
    AMP predicts, or 0.
    """

    setting: str
    micro_batch: int
    tensor: int
    data: int
    pipe: int
    cuts: tuple[int, ...]
    seconds: float
    theirs: float = 0.0

    @property
    def parts(self) -> int:
        """The micro-batches of a step."""
        return BATCH // (self.data * self.micro_batch)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh, major to minor, without axes of one."""
        sizes = {"pipe": self.pipe, "data": self.data, "tensor": self.tensor}
        return {name: size for name, size in sizes.items() if size > 1}

    @property
    def begins(self) -> tuple[int, ...]:
        """
        The first layers of stages, of ours: two embeddings, 24 blocks, the last norm and the vocabulary's projection.

        AMP's slots are an embedding and an empty one, the blocks, two empty ones, the projection, an empty one.
        """
        return (0, *(min(cut, 2 + LAYERS + (cut > 2 + LAYERS)) for cut in self.cuts[1:-1]))


def read_trials(path: Path) -> list[Trial]:
    """The runs of a file of AMP's trials that have a time."""
    found: list[Trial] = []
    for row in csv.DictReader(path.read_text().splitlines()):
        seconds = float(row["measured_s"] or "nan")
        cuts = tuple(map(int, row["layer_cuts"].split()))
        tensor, pipe = int(row["tensor_par"]), int(row["pipe_par"])
        data = int(row.get("data_par") or RANKS // (tensor * pipe))
        theirs = float(row.get("predicted_s") or 0.0)
        if seconds < float("inf"):
            found.append(Trial(row["setting"], int(row["microbatch"]), tensor, data, pipe, cuts, seconds, theirs))
    return found


def outlines(trials: Iterable[Trial], cache_file: Path | None) -> list[Outline]:
    """The outlines of trials, from a file where it has them."""
    known: dict[object, Outline] = {}
    if cache_file is not None and cache_file.exists():
        known = pickle.loads(cache_file.read_bytes())
    found: list[Outline] = []
    for trial in trials:
        key = (trial.micro_batch, trial.tensor, trial.data, trial.pipe, trial.begins)
        if key not in known:
            module = planned(trial)
            (func,) = step_functions(module)
            known[key] = outline_of(module, func)
            if cache_file is not None:
                cache_file.write_bytes(pickle.dumps(known))
        found.append(known[key])
    return found


@cache
def _imported() -> ModuleOp:
    """GPT-2 at AMP's sizes."""
    config = GPT2Config(layers=LAYERS, width=1024, heads=16, vocabulary=52256, positions=1024)
    return import_training_step(gpt2_step(config, batch=BATCH, length=1024))


def planned(trial: Trial) -> ModuleOp:
    """The scheduled step of a trial, on a cluster that only gives its mesh."""
    module = _searched(tuple(trial.axes.items()), trial.begins).clone()
    passes = (
        f"split-batch{{parts={trial.parts}}},insert-resharding,select-collectives,"
        "schedule-pipeline{schedule=1f1b},plan-transfers"
    )
    run_pipeline(Context(), module, passes, verify_each=False)
    return module


@cache
def _searched(axes: tuple[tuple[str, int], ...], begins: tuple[int, ...]) -> ModuleOp:
    """The step in its stages, with the signatures that its degrees of parallelism ask for."""
    module = _imported().clone()
    mesh = Mesh.of(**dict(axes))
    device = Device("nominal", (("float32", 1e13),), 1e12, 1e15)
    links = tuple(Link(axis, 0.0, 1e-10) for axis in mesh.names)
    add_cluster(module, Cluster("amp", mesh, (device,), (0,) * RANKS, links))
    presets = [(preset, axis) for preset, axis in (("dp", "data"), ("tp", "tensor")) if axis in mesh.names]
    pins = "".join(f'[[pin]]\npreset = "{preset}"\naxes = ["{axis}"]\n' for preset, axis in presets)
    passes = Pipeline.of(
        BEGIN,
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
    works = tuple((work if work.family == "update" else _halved(work), count) for work, count in stretch.works)
    buckets: dict[tuple[str, ...], float] = {}
    others: list[tuple[CollectiveWork, int]] = []
    for each, count in stretch.communications:
        if each.kind is CollectiveKind.ALL_REDUCE and "data" in each.axes:
            buckets[each.axes] = buckets.get(each.axes, 0.0) + count * each.whole_bytes / 2
        else:
            others.append((replace(each, whole_bytes=each.whole_bytes / 2), count))
    reduced = ((CollectiveWork(CollectiveKind.ALL_REDUCE, axes, size), 1) for axes, size in buckets.items())
    return Stretch(works, (*others, *reduced))


def _halved(work: OpWork) -> OpWork:
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
