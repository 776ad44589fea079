"""
AutoDDL's models and clusters (`autoddl.py`), and plans of their steps.

A baseline is a plan by hand: a mesh, pins that `search-strategy{algorithm=fixed}` completes with the least
communication, and the passes of `program`.

- `data parallel`, `ZeRO-1` and `ZeRO-3` are the presets over all devices.
- `Megatron` is tensor parallelism inside data parallelism, at every degree inside hosts (5); `Megatron over hosts` has
  the other degrees. For VGG only the dense layers are tensor parallel, alternately by columns and by rows (5.1.1).
- `pinned matrices` has the same shardings of VGG's parameters, but the completion may gather the small activations of
  dense layers, so that no gradient of a dense layer is reduced. It is not in the paper.
- `Summa` (4.2.1, as in Optimus) splits every weight matrix over both axes of a mesh. A product gathers its panel of the
  matrix over one axis, and its panel of the activations over the other axis.

Transformers accumulate the gradients of micro-batches (5.1.2), which are as large as memory allows, or of one or two
rows if that is faster. Gathered parameters are kept from micro-batch to micro-batch.

`autoddl` is the fastest of the optima of AutoDDL's objective, the sum of the seconds of all ops and collectives, on all
meshes of two axes where the optimum fits in memory. Its searches (`coordinate-descent` and others) approach it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter

from _plain_plans import divisors, pins_of, tightest
from _steps import after, planned, prepared
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.training_step import TrainingStep
from shardwright.dialects import train
from shardwright.dialects.compute import element_bytes, shape_of
from shardwright.dialects.pins import PIN, ValuePinAttr
from shardwright.dialects.step import merge_argument_attributes
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Axis, Mesh
from shardwright.ir.pins import Copy, ShardingLimit, ValuePin
from shardwright.ir.sharding import Sharding
from shardwright.ir.submesh import on_mesh, subcluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step
from shardwright.passes.analysis.simulation.results import Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import PassError
from shardwright.passes.partition_stages import PartitionStagesPass
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import ADDITIVE, Candidate, Layout
from shardwright.passes.planning.notes import Refused
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import Input, step_functions, step_views

UNLIMITED = 1e18
"""Bytes for searches of plans that are cut into micro-batches later; the finished program is checked."""

DENSE = (0, 3, 6)
"""Numbers of VGG's dense layers among the modules of its classifier."""


@dataclass(frozen=True)
class Setting:
    """
    A model on some hosts of a cluster, with the same number of GPUs on each.

    Args:
        rows: samples of a batch.
        stages: numbers of pipeline stages of the plans by hand.
    """

    name: str
    step: Callable[[], TrainingStep]
    cluster: str
    hosts: int
    gpus: int
    rows: int
    stages: tuple[int, ...] = (1,)

    @property
    def is_vgg(self) -> bool:
        """Return whether the model is VGG, whose batch is not cut (5.1.1)."""
        return self.name.startswith("VGG")

    def devices(self) -> Cluster:
        """Return the devices of the setting as hosts and GPUs."""
        whole = find_cluster(self.cluster)
        if self.gpus == 1:
            return on_mesh(whole, Mesh.of(node=self.hosts))
        each = whole.mesh.device_count // self.hosts
        ranks = tuple(host * each + gpu for host in range(self.hosts) for gpu in range(self.gpus))
        return subcluster(whole, Mesh.of(node=self.hosts, gpu=self.gpus), ranks)


def vgg(hosts: int, gpus: int, batch: int) -> Setting:
    return _placed(
        f"VGG13, {hosts}x{gpus}", partial(vgg_step, VGGConfig(convolutions=VGG13), batch=batch), hosts, gpus, batch
    )


def small_vgg() -> Setting:
    """Return a VGG13 that is planned in seconds."""
    config = VGGConfig(convolutions=VGG13, widths=(4, 8, 16, 32, 32), hidden=64, image=32, classes=10)
    return Setting("VGG13, small", partial(vgg_step, config, batch=32), "autoddl-a100-2x16", 2, 2, 32)


def gpt(hosts: int, gpus: int, batch: int, sizes: tuple[int, int, int], stages: int = 1) -> Setting:
    """Return a Transformer of a number of layers, a width and a number of heads, with a batch of 1,024 tokens each."""
    layers, width, heads = sizes
    config = GPT2Config(layers=layers, width=width, heads=heads, vocabulary=51200, positions=1024)
    step = partial(gpt2_step, config, batch=batch, length=1024)
    return _placed(f"GPT {layers}x{width}, {hosts}x{gpus}", step, hosts, gpus, batch, tuple(range(1, stages + 1)))


def _placed(
    name: str, step: Callable[[], TrainingStep], hosts: int, gpus: int, rows: int, stages: tuple[int, ...] = (1,)
) -> Setting:
    """Return a step on Piz Daint, or in mixed precision on Google Cloud if hosts have several GPUs."""
    if gpus == 1:
        return Setting(name, step, "autoddl-daint-32", hosts, gpus, rows, stages)
    return Setting(name, partial(_mixed, step), "autoddl-a100-2x16", hosts, gpus, rows, stages)


def _mixed(step: Callable[[], TrainingStep]) -> TrainingStep:
    return replace(step(), precision="bf16-mixed")


@dataclass(frozen=True)
class Hand:
    """A plan by hand, with the pins of its strategy as TOML."""

    family: str
    name: str
    mesh: Mesh
    pins: str
    is_summa: bool = False
    stages: int = 1


@dataclass(frozen=True)
class Outcome:
    """A finished plan, with the memory of its tightest rank and the seconds of planning."""

    name: str
    simulation: Simulation
    peak_bytes: int
    memory_bytes: float
    planning: float
    module: ModuleOp = field(repr=False)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.memory_bytes

    @property
    def seconds(self) -> float:
        return self.simulation.seconds

    @property
    def sent(self) -> float:
        """Return the seconds that the channels of the busiest rank are busy, overlapped or not."""
        seconds = self.simulation.busy_seconds(self._busiest)
        return sum(value for name, value in seconds.items() if name != "compute")

    @property
    def exposed(self) -> float:
        """Return the seconds that the busiest rank does not compute."""
        return self.simulation.exposed_seconds(self._busiest)

    @property
    def _busiest(self) -> int:
        return self.simulation.busiest(self.simulation.classes[0].stage).number


class Bench:
    """Plans one setting in each way."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.cluster = setting, setting.devices()
        self.module = prepared(setting.step())

    def meshes(self) -> Iterator[Mesh]:
        """Yield the meshes of an outer axis `a` and an inner axis `b`, for every size of `b` that divides the ranks."""
        count = self.cluster.mesh.device_count
        for degree in divisors(count):
            yield Mesh((Axis("a", count // degree), Axis("b", degree)), self.cluster.mesh.name)

    def by_hand(self) -> Iterator[Hand]:
        flat, *inner = self.meshes()
        for preset, family in (("dp", "data parallel"), ("zero1", "ZeRO-1"), ("zero3", "ZeRO-3")):
            yield Hand(family, family, flat, pins_of((preset, ("a", "b"))))
        for mesh in inner:
            outer, degree = (axis.size for axis in mesh.axes)
            megatron = "Megatron" if self.setting.gpus == 1 or degree <= self.setting.gpus else "Megatron over hosts"
            if self.setting.is_vgg:
                for first, order in ((0, "columns first"), (1, "rows first")):
                    name = f"dense {outer}x{degree}, {order}"
                    yield Hand(megatron, name, mesh, pins_of(("dp", ("a",))) + _dense(first))
                    yield Hand("pinned matrices", name, mesh, _dense(first))
                if outer > 1:
                    yield Hand("Summa", f"dense {outer}x{degree}", mesh, _convolutions(), is_summa=True)
                continue
            for stages in self.setting.stages:
                if outer % stages == 0:
                    name = f"dp {outer // stages}, tp {degree}" + (f", {stages} stages" if stages > 1 else "")
                    yield Hand(megatron, name, mesh, pins_of(("dp", ("a",)), ("tp", ("b",))), stages=stages)
            if outer > 1:
                yield Hand("Summa", f"{outer}x{degree}", mesh, pins_of(("zero1", ("a",))), is_summa=True)

    def rows_of(self, hand: Hand) -> int:
        """Return the largest number of micro-batches, with a row for each part of the batch over ranks."""
        if self.setting.is_vgg:
            return 1
        split = hand.mesh.axes[0].size if hand.family.startswith("Megatron") else hand.mesh.device_count
        return max(self.setting.rows * hand.stages // split, 1)

    def best_of(self, hand: Hand) -> Outcome | str:
        """Return the fastest outcome of a plan by hand over numbers of micro-batches, or why there is none."""
        if (least := self._least_bytes(hand)) > self.cluster.memory:
            return f"parameters and states alone need {least / 1e9:.1f} GB of {self.cluster.memory / 1e9:.1f}"
        most, tried = self.rows_of(hand), dict[int, Outcome]()
        try:
            decided = self._decided(hand)
            for parts in (most, max(most // 2, 1)):
                tried[parts] = self._finished(hand, decided.clone(), parts)
            if (parts := _fewest(tried)) is not None:
                tried[parts] = self._finished(hand, decided.clone(), parts)
            if hand.family == "ZeRO-3" and not any(outcome.fits for outcome in tried.values()):
                tried = {parts: self._finished(hand, decided.clone(), parts, per_part=True) for parts in tried}
        except (PassError, ValueError) as error:
            if not tried:
                return " ".join(str(error).split())
        fitting = [outcome for outcome in tried.values() if outcome.fits]
        if not fitting:
            return f"needs {tried[most].peak_bytes / 1e9:.1f} GB of {tried[most].memory_bytes / 1e9:.1f}"
        return min(fitting, key=lambda outcome: outcome.seconds)

    def _least_bytes(self, hand: Hand) -> float:
        """Return the bytes of the parameters and states of a rank, with gathered copies."""
        params, states = (
            sum(math.prod(shape_of(v.argument)) * element_bytes(v.argument) for v in self._inputs if v.role == role)
            for role in (train.PARAM, train.STATE)
        )
        ranks = hand.mesh.device_count
        if self.setting.is_vgg or hand.family == "ZeRO-3":
            return (params + states) / ranks
        if hand.family == "Summa":
            return (params + states) / ranks + params / hand.mesh.axes[1].size
        if hand.family.startswith("Megatron"):
            return (params + states) / hand.mesh.axes[1].size / hand.stages
        return params + (states if hand.family == "data parallel" else states / ranks)

    @cached_property
    def _inputs(self) -> list[Input]:
        ((view, _),) = step_views(planned(self.module, self.cluster))
        return list(view.inputs)

    def _decided(self, hand: Hand) -> ModuleOp:
        module = planned(self.module, on_mesh(self.cluster, hand.mesh))
        if hand.is_summa:
            pin_summa(module)
        if hand.stages > 1:
            after(module, PartitionStagesPass(hand.stages, micro_batches=self.rows_of(hand)))
        return after(module, SearchStrategyPass("fixed", pins=hand.pins, memory=UNLIMITED))

    def _finished(self, hand: Hand, module: ModuleOp, parts: int, *, per_part: bool = False) -> Outcome:
        schedule = " mode=pipeline schedule=1f1b" if hand.stages > 1 else " per_part=true" if per_part else ""
        after(module, f"program{{parts={parts}{schedule}}}")
        name = f"{hand.name}, {parts} micro-batches" if parts > 1 else hand.name
        return _outcome(f"{name}, gathered by each" if per_part else name, module, 0.0)

    @cached_property
    def _compiler(self) -> CandidateCompiler:
        return CandidateCompiler(planned(self.module, self.cluster), self.cluster)

    def autoddl(self, parts: int) -> Outcome | None:
        """Return the fastest optimum of AutoDDL's objective over all meshes, or None if no optimum fits."""
        fitting, began = list[Outcome](), perf_counter()
        for mesh in self.meshes():
            layout = Layout(Mesh(tuple(axis for axis in mesh.axes if axis.size > 1), mesh.name))
            if parts > 1:
                layout = replace(layout, mode="accumulate", parts=parts)
            try:
                finished = self._compiler.finish(self._compiler.solve(Candidate(layout, ADDITIVE)))
            except Refused:
                continue
            outcome = _outcome(finished.candidate.name, finished.module, perf_counter() - began)
            fitting += [outcome] if outcome.fits else []
        return min(fitting, key=lambda outcome: outcome.seconds, default=None)

    def auto(self) -> Outcome:
        """Return the plan of `search-plan` without options."""
        module = planned(self.module, self.cluster)
        began = perf_counter()
        after(module, SearchPlanPass(bound_rounds=0))
        plan = read_plan(step_functions(module)[0])
        return _outcome(plan.chosen if plan is not None else "", module, perf_counter() - began)


def _fewest(tried: Mapping[int, Outcome]) -> int | None:
    """Return the smallest power of two that should fit, as bytes are linear in the rows of a part; None if tried."""
    if len(tried) < 2:
        return None
    (most, one), (half, two) = ((parts, outcome.peak_bytes) for parts, outcome in tried.items())
    slope = (two - one) / (1 / half - 1 / most)
    room = tried[most].memory_bytes - one + slope / most
    parts = most
    while slope > 0 and parts > 1 and slope / (parts // 2) <= room:
        parts //= 2
    return parts if parts not in tried else None


def _outcome(name: str, module: ModuleOp, planning: float) -> Outcome:
    (simulation,) = simulate_module(module)
    return Outcome(name, simulation, *tightest(module), planning, module)


def pin_summa(module: ModuleOp) -> None:
    """Split every matrix of a product over both axes, and gather it over the first axis where it is used."""
    home, copy = Sharding.of([["b"], ["a"]]), frozenset({("S", 0)})
    working = Copy(ShardingLimit(axes=(("a", frozenset({"R"})), ("b", copy))), regathered=True)
    for view, _ in step_views(module):
        for value in view.inputs:
            if value.role == train.PARAM and len(shape_of(value.argument)) == 2:
                pin = ValuePinAttr(ValuePin(ShardingLimit(home), working))
                merge_argument_attributes(view.func, {value.argument.index: {PIN: pin}})


def _pin(value: str, sharding: str) -> str:
    return f"[[pin]]\nvalue = \"{value}\"\nsharding = '{sharding}'\n"


def _convolutions() -> str:
    """Return the pins of data-parallel convolutions over all devices."""
    pins = _pin("batch.0", '[{"a", "b"}, {}, {}, {}]') + _pin("batch.1", '[{"a", "b"}]')
    for each in ("", ".exp*"):
        pins += _pin(f"features.*.weight{each}", "[{}, {}, {}, {}]") + _pin(f"features.*.bias{each}", "[{}]")
    return pins


def _dense(first: int) -> str:
    """Return the pins of VGG with dense layers split over `b`, alternately by columns and by rows from `first`."""
    pins = _convolutions()
    for number, layer in enumerate(DENSE, first):
        matrix, bias = ('[{"b"}, {}]', '[{"b"}]') if number % 2 == 0 else ('[{}, {"b"}]', "[{}]")
        for each in ("", ".exp*"):
            pins += _pin(f"classifier.{layer}.weight{each}", matrix) + _pin(f"classifier.{layer}.bias{each}", bias)
    return pins
