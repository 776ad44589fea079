"""The candidates of a search over plans: layouts over devices and time, each with a way to find its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypedDict

from ...ir.mesh import Mesh
from ...ir.pins import Pin
from ..pipelines import Mode, ProgramPipeline
from ..search.objective import COMPLETION, Weights
from ..stages.schedules import ScheduleName


@dataclass(frozen=True)
class Layout:
    """
    The way that a step is laid out over devices and over time.

    Args:
        mesh: mesh of all devices.
        mode: whether the batch is whole, in parts one after the other, in parts that take turns, or in a pipeline.
        parts: number of parts of the batch.
        stages: number of stages of a pipeline.
        schedule: schedule of a pipeline.
        fused: whether batch-norms stay single ops, which take their statistics from the rows of one device.
        keep: largest fraction of the bytes from forward for backward that is kept; the rest is recomputed.
        chunked: whether products and their collectives are cut in parts (`chunk-collectives`).
        chunks: largest number of chunks of layers in each stage of a pipeline.
        ranks: the ranks of the cluster that form the mesh, in its order; None for all. The others idle.
        per_part: whether each part of an accumulated batch gathers parameters and reduces gradients by itself.
    """

    mesh: Mesh
    mode: Mode = "whole"
    parts: int = 1
    stages: int = 1
    schedule: ScheduleName = "auto"
    fused: bool = False
    keep: float = 1.0
    chunked: bool = False
    chunks: int = 1
    ranks: tuple[int, ...] | None = None
    per_part: bool = False

    @property
    def name(self) -> str:
        """Return the layout in words: `4x16`, `4x16, 8 micro-batches`, `4x16, 4 stages, 8 micro-batches, 1f1b`."""
        # Ranks in another order are a placement of stages.
        only = "only " if self.ranks is not None and list(self.ranks) == sorted(self.ranks) else ""
        parts = {
            "x".join(str(axis.size) for axis in self.mesh.spatial) or "1": True,
            f"{only}ranks [{_ranges(self.ranks or ())}]": self.ranks is not None,
            f"{self.stages} stages": self.mode == "pipeline",
            f"up to {self.chunks} chunks": self.chunks > 1,
            f"{self.parts} micro-batches": self.parts > 1,
            "gathered by each": self.per_part,
            self.schedule: self.schedule != "auto",
            "duplex": self.mode == "duplex",
            "fused batch-norm": self.fused,
            f"keeping {self.keep:.0%} of activations": self.keep < 1,
            "products in parts": self.chunked,
        }
        return ", ".join(part for part, is_shown in parts.items() if is_shown)

    @property
    def program(self) -> ProgramPipeline:
        """Return the passes that make a program of a step with signatures."""
        return ProgramPipeline(self.mode, self.parts, self.schedule, self.chunked, self.per_part)

    @property
    def without_time(self) -> Layout:
        """Return the layout before it is scheduled. A pipeline keeps its micro-batches, since stages depend on them."""
        if self.stages > 1:
            return replace(self, mode="pipeline", schedule="auto", chunked=False)
        return replace(self, mode="whole", parts=1, chunked=False, per_part=False)


def _ranges(ranks: Sequence[int]) -> str:
    """Return numbers as text: `0-3, 8`."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@dataclass(frozen=True)
class Choice:
    """
    The way to find the strategy on a layout.

    Args:
        pins: pins that the strategy must obey; without any, the search decides alone.
        weights: weights of the objective.
        balanced: whether devices have shares by their speed.
        fits: whether memory is charged until the strategy fits.
    """

    pins: tuple[Pin, ...] = ()
    weights: Weights = field(default_factory=Weights)
    balanced: bool = False
    fits: bool = False

    @property
    def presets(self) -> tuple[Pin, ...]:
        """Return the pins that are presets, outermost first."""
        return tuple(pin for pin in self.pins if pin.preset)

    @property
    def name(self) -> str:
        """Return the presets, as `dp` or `dp over node + tp over gpu`, or `searched` without any."""
        several = len(self.presets) > 1
        names = [f"{pin.preset} over {'-'.join(pin.axes or ())}" if several else pin.preset for pin in self.presets]
        return " + ".join(names) or "searched"

    @property
    def is_completion(self) -> bool:
        """Return whether presets are completed without a search."""
        return self.weights == COMPLETION

    @property
    def objective(self) -> str:
        """Return the objective of a search in words, `weights 0.25/1, unbucketed`; empty if there is no search."""
        if self.is_completion:
            return ""
        weights = self.weights
        parts = {
            f"weights {weights.parameters:g}/{weights.activations:g}": True,
            "unbucketed": not weights.bucketed,
            "within memory": self.fits,
        }
        return ", ".join(part for part, is_shown in parts.items() if is_shown)


class Family(TypedDict):
    """
    The kind of a candidate, so that code can group candidates without parsing their names; records have it as it is.

    `strategy` has the presets, outermost first, as `dp` or `dp+tp`, or is `search`. `mesh` is the mesh of all devices.
    """

    mode: Mode
    strategy: str
    mesh: dict[str, int]
    balanced: bool


@dataclass(frozen=True)
class Candidate:
    """A layout with a way to find its strategy."""

    layout: Layout
    choice: Choice

    @property
    def name(self) -> str:
        """Return the name of the candidate in reports: `dp on 8x8`, `searched on 16x4 (weights 0.25/1, unbucketed)`."""
        shares = ", shares by speed" if self.choice.balanced else ""
        objective = f" ({self.choice.objective})" if self.choice.objective else ""
        return f"{self.choice.name} on {self.layout.name}{shares}{objective}"

    @property
    def family(self) -> Family:
        """Return the kind of the candidate."""
        strategy = "+".join(pin.preset for pin in self.choice.presets) or "search"
        mesh = {axis.name: axis.size for axis in self.layout.mesh.spatial}
        return Family(mode=self.layout.mode, strategy=strategy, mesh=mesh, balanced=self.choice.balanced)


def resized(candidate: Candidate, count: int, *, balanced: bool) -> list[Candidate]:
    """
    Return variants of a candidate on `count` devices, the likeliest to leave the state in place first: each resizes one
    axis, beginning with the outermost, and the last has all devices on the outermost axis.

    Args:
        balanced: whether devices differ, so that variants with shares by speed come first.
    """
    axes = candidate.layout.mesh.spatial
    sizes: list[list[int]] = []
    for at, axis in enumerate(axes):
        others = candidate.layout.mesh.device_count // axis.size
        if count % others == 0:
            sizes.append([count // others if index == at else other.size for index, other in enumerate(axes)])
    sizes.append([count, *(1 for _ in axes[1:])])
    variants: list[Candidate] = []
    for resized_axes in sizes:
        new_axes = tuple(replace(axis, size=size) for axis, size in zip(axes, resized_axes, strict=True))
        layout = replace(candidate.layout, mesh=replace(candidate.layout.mesh, axes=new_axes))
        for shares in (True, False) if balanced else (False,):
            variants.append(Candidate(layout, replace(candidate.choice, balanced=shares)))
    return list(dict.fromkeys(variants))


def preset(*parts: tuple[str, tuple[str, ...]]) -> Choice:
    """Return one preset, or several on separate axes, outermost first: `(("dp", ("node",)), ("tp", ("gpu",)))`."""
    return Choice(tuple(Pin(preset=name, axes=axes) for name, axes in parts), COMPLETION)


def searched(parameters: float, activations: float, *, bucketed: bool = True) -> Choice:
    """
    Return the search for the optimum of an objective that counts only a part of the seconds of collectives.

    Args:
        parameters: factor for collectives that overlap compute.
        activations: factor for collectives that block compute.
        bucketed: whether the former pay latency in proportion to their bytes, as in full buckets, or one by one.
    """
    return Choice(weights=Weights(parameters=parameters, activations=activations, bucketed=bucketed))


FIRST = (searched(0.25, 1.0, bucketed=False), searched(1.0, 1.0), searched(1.0, 1.0, bucketed=False))
"""The first objectives for a layout: one for steps that can hide much of their communication, two for little."""

ADDITIVE = FIRST[-1]
"""The objective of `search-strategy`: the sum of all seconds, without weights."""

HIDING = (searched(1.0, 0.5), searched(1.0, 0.25))
"""The objectives for programs that hide collectives of activations: parts that take turns, and products in parts."""

DATA_PARALLEL = ("dp", "zero1", "zero3")
"""The presets of data parallelism; `zero2` makes the same program as `zero1`."""


def axes_of(mesh: Mesh) -> tuple[str, ...]:
    """Return the names of the axes over several devices."""
    return tuple(axis.name for axis in mesh.spatial if axis.size > 1)


def presets(mesh: Mesh) -> list[Choice]:
    """
    Return the strategies that people write by hand: data parallelism over the outer axes, with ZeRO-3 over the inner
    part of them, and tensor parallelism over the inner axes.
    """
    axes = axes_of(mesh)
    choices: list[Choice] = []
    for count in range(len(axes), 0, -1):
        outer, inner = axes[:count], axes[count:]
        inside = [("tp", inner)] if inner else []
        choices += [preset((name, outer), *inside) for name in DATA_PARALLEL]
        choices += [preset(("dp", outer[:at]), ("zero3", outer[at:]), *inside) for at in range(1, count)]
    return [*choices, preset(("tp", axes))] if axes else [preset(("dp", axes))]
