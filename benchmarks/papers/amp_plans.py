"""
AMP's published runs as plans of this compiler, and its search space (`amp.py`).

A run becomes a plan by hand: GPT-2 or TransGAN's generator is imported, cut into the run's stages, pinned to its
degrees of data and tensor parallelism, split into its micro-batches and scheduled as 1F1B. Its outline is timed on the
testbeds of `amp_testbed.py`. `amp_trials.csv` has the 27 runs of tables 6 to 11 and the 53 trials on 16 T4s of AMP's
released results, with AMP's predictions. A failed run takes `inf`; one trial has no measured time.
"""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import isinf, isnan
from pathlib import Path
from typing import Any

from _outline import Outline, Stretch, outline_of
from _plain_plans import Plain, Prepared, Workshop, divisors
from _steps import planned as placed
from _steps import prepared as prepared_step
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import OpWork
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.transformer import SelfAttention
from shardwright.models.transgan import Growth, TransGANConfig, transgan_step
from shardwright.passes.analysis.durations import CollectiveWork
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.memory_roles import MemoryRole
from shardwright.passes.stages.partition import partition
from shardwright.passes.stages.stage_costs import LayerWork, StageCosts
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import step_functions, step_views

RANKS, HOST, LAYERS = 16, 4, 24

OUTLINED = "split-batch{{parts={parts}}},communicate,schedule-pipeline{{schedule=1f1b}},plan-transfers"
"""Passes that make the program of an outline, which has no overlap."""

OVERLAPPED = "program{{mode=pipeline parts={parts} schedule=1f1b}}"


@dataclass(frozen=True)
class Workload:
    """
    A model as AMP ran it.

    Args:
        make: function that makes the training step. If its argument is true, attention writes out its scores. layer_at:
        function from a slot of AMP's to our number of its layer. written_out: whether simulated programs write out the
        scores, because the fitted rate of attention does not apply.
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
    The parallelism of a step: samples of a micro-batch on a rank, degrees inside a stage, and first layers of stages.
    """

    workload: Workload
    micro_batch: int
    tensor: int
    data: int
    begins: tuple[int, ...]

    @property
    def pipe(self) -> int:
        return len(self.begins)

    @property
    def parts(self) -> int:
        return self.workload.batch // (self.data * self.micro_batch)

    @property
    def name(self) -> str:
        """Return the degrees of pipeline, data and tensor parallelism, and the micro-batch, as in `4x4x1, 2`."""
        return f"{self.pipe}x{self.data}x{self.tensor}, {self.micro_batch}"

    @property
    def mesh(self) -> Mesh:
        """Return the mesh, axes major to minor, without axes of size one."""
        sizes = {"pipe": self.pipe, "data": self.data, "tensor": self.tensor}
        return Mesh.of(**{name: size for name, size in sizes.items() if size > 1})

    def plain(self, finish: str) -> Plain:
        pins = tuple(
            (preset, (axis,)) for preset, axis in (("dp", "data"), ("tp", "tensor")) if axis in self.mesh.names
        )
        begins = ",".join(map(str, self.begins))
        cut = f'partition-stages{{stages={self.pipe} micro_batches={self.parts} begins="{begins}"}},'
        return Plain("AMP", self.name, self.mesh, pins, finish.format(parts=self.parts), cut)


@dataclass(frozen=True)
class Trial:
    """
    A published run: the method that proposed it in a table ("" if no table has it), and its measured seconds (infinity
    for a failed run).

    `theirs` are the seconds that AMP predicts, or 0.
    """

    setting: str
    method: str
    setup: Setup
    seconds: float
    theirs: float

    @property
    def failed(self) -> bool:
        """Return whether the run ended without a time."""
        return isinf(self.seconds)


def read_trials() -> list[Trial]:
    """Read all published runs with a measured time or a failure."""
    trials: list[Trial] = []
    for row in csv.DictReader(Path(__file__).with_name("amp_trials.csv").read_text().splitlines()):
        workload = TRANSGAN_RUN if row["setting"] == "het_model" else GPT2_RUN
        # Table 10 lists one and two as numbers of stages where the cuts make two and four; the cuts decide here.
        begins = (0, *(workload.layer_at(int(slot)) for slot in row["cuts"].split()))
        tensor = int(row["tensor"])
        setup = Setup(workload, int(row["micro_batch"]), tensor, RANKS // (tensor * len(begins)), begins)
        seconds, theirs = float(row["measured"] or "nan"), float(row["predicted"] or 0.0)
        trials.append(Trial(row["setting"], row["method"], setup, seconds, theirs))
    return [trial for trial in trials if not isnan(trial.seconds)]


@lru_cache(maxsize=3)
def prepared(workload: Workload, *, written_out: bool = False) -> Prepared:
    """Import a model at AMP's sizes, and prepare it for the passes that decide."""
    module = prepared_step(workload.make(written_out))
    return Prepared(module, module, False, workload.batch)


@lru_cache(maxsize=1)
def _nominal(workload: Workload, written_out: bool, mesh: Mesh) -> Workshop:
    """Return the workshop of a model on a cluster that only provides the mesh."""
    device = Device("nominal", (("float32", 1e13),), 1e12, 1e15)
    links = tuple(Link(axis, 0.0, 1e-10) for axis in mesh.names)
    return Workshop(prepared(workload, written_out=written_out), Cluster("amp", mesh, (device,), (0,) * RANKS, links))


def planned(setup: Setup, *, written_out: bool) -> ModuleOp:
    """Return the scheduled step on a nominal cluster."""
    return _nominal(setup.workload, written_out, setup.mesh).program(setup.plain(OUTLINED))


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


def as_run(outline: Outline) -> Outline:
    """
    Return the step as AMP's DeepSpeed ran it: in half precision except the update, and all gradients reduced at once.
    """
    stages = tuple(replace(stage, stretches=tuple(map(_as_run, stage.stretches))) for stage in outline.stages)
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


KEPT_WHOLE = frozenset({MemoryRole.PARAMETERS, MemoryRole.STATES, MemoryRole.GRADIENTS})
"""Roles that take sixteen bytes per parameter together, in float32 as in mixed precision."""


def degrees_of(workload: Workload) -> Iterator[tuple[tuple[Setup, ...], ...]]:
    """
    Yield all degrees that AMP enumerates, as setups that are not cut into stages.

    The order is by tensor parallelism, which stays inside hosts, then by data parallelism, then by micro-batch size.
    """
    for tensor in divisors(HOST):
        by_data = ((data, divisors(workload.batch // data)) for data in divisors(RANKS // tensor))
        yield tuple(tuple(Setup(workload, size, tensor, data, (0,)) for size in sizes) for data, sizes in by_data)


def cut(setup: Setup, on: Callable[[Mesh], Cluster]) -> Setup:
    """Return the setup with as many stages as fill all ranks, cut as `partition-stages` cuts them on a cluster."""
    workload, pipe = setup.workload, RANKS // (setup.tensor * setup.data)
    if pipe == 1:
        return setup
    cluster = on(replace(setup, begins=(0,) * pipe).mesh)
    step = prepared(workload, written_out=workload.written_out).decomposed
    ((view, _),) = step_views(placed(step, cluster))
    layers = find_layers(view)
    costs = StageCosts(LayerWork(view, layers), cluster, (RANKS // pipe,) * pipe, setup.parts)
    best = partition(len(layers.names), pipe, setup.parts, costs.compute, costs.communicate)
    return replace(setup, begins=best.bounds[:-1])


@cache
def peak_bytes(setup: Setup) -> float:
    """
    Return the peak memory of a rank in half precision, with written out scores of attention as in AMP's runtime.

    The float32 program is analysed, and its activations are halved.
    """
    module = planned(setup, written_out=True)
    peaks = [
        peak_memory(view.func, cluster.mesh, stage=view.stage, blocks=cluster.blocks).by_role
        for view, cluster in step_views(module)
    ]
    return max(sum(size if role in KEPT_WHOLE else size / 2 for role, size in roles.items()) for roles in peaks)
