"""The candidates of a search over plans: layouts over devices and time, each with a way to find its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

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

    @property
    def name(self) -> str:
        """Return the layout in words: `4x16`, `4x16 in 8 parts`, `4 stages of 4x16, 8 micro-batches, 1f1b`."""
        sizes = "x".join(str(axis.size) for axis in self.mesh.spatial) or "1"
        also = ", fused batch-norm" if self.fused else ""
        also += f", keeping {self.keep:.0%} of activations" if self.keep < 1 else ""
        also += ", products in parts" if self.chunked else ""
        if self.ranks is not None:
            # Ranks in another order are a placement of stages.
            also += f" on ranks {_ranges(self.ranks)}{' alone' if list(self.ranks) == sorted(self.ranks) else ''}"
        match self.mode:
            case "whole":
                return sizes + also
            case "accumulate":
                return f"{sizes} in {self.parts} parts{also}"
            case "duplex":
                parts = f" in {self.parts} parts" if self.parts > 2 else ""
                return f"{sizes} duplex{parts}{also}"
            case "pipeline":
                order = f", {self.schedule}" if self.schedule != "auto" else ""
                chunks = f" in up to {self.chunks} chunks" if self.chunks > 1 else ""
                return f"{self.stages} stages of {sizes}{chunks}, {self.parts} micro-batches{order}{also}"

    @property
    def program(self) -> ProgramPipeline:
        """Return the passes that make a program of a step with signatures."""
        return ProgramPipeline(self.mode, self.parts, self.schedule, self.chunked)

    @property
    def without_time(self) -> Layout:
        """Return the layout before it is scheduled. A pipeline keeps its micro-batches, since stages depend on them."""
        if self.stages > 1:
            return replace(self, mode="pipeline", schedule="auto", chunked=False)
        return replace(self, mode="whole", parts=1, chunked=False)


def _ranges(ranks: Sequence[int]) -> str:
    """Return numbers as text: `0-3, 8`."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@dataclass(frozen=True)
class Choice:
    """
    The way to find the strategy on a layout.

    Args:
        name: name of a preset or of the kind of search.
        pins: pins that the strategy must obey.
        weights: weights of the objective.
        balanced: whether devices have shares by their speed.
        fits: whether memory is charged until the strategy fits.
    """

    name: str
    pins: tuple[Pin, ...] = ()
    weights: Weights = field(default_factory=Weights)
    balanced: bool = False
    fits: bool = False


@dataclass(frozen=True)
class Family:
    """
    The kind of a candidate, so that code can group candidates without parsing their names.

    Args:
        mode: mode of its layout.
        strategy: its presets, outermost first, as `dp` or `dp+tp`; `search` if it has none.
        mesh: the axes of all devices with their sizes.
        balanced: whether devices have shares by their speed.
    """

    mode: Mode
    strategy: str
    mesh: tuple[tuple[str, int], ...]
    balanced: bool = False

    @property
    def presets(self) -> tuple[str, ...]:
        """Return the presets as a tuple, outermost first."""
        return tuple(self.strategy.split("+"))


@dataclass(frozen=True)
class Candidate:
    """A layout with a way to find its strategy."""

    layout: Layout
    choice: Choice

    @property
    def name(self) -> str:
        """Return the name of the candidate in reports."""
        shares = ", shares by speed" if self.choice.balanced else ""
        return f"{self.choice.name} on {self.layout.name}{shares}"

    @property
    def family(self) -> Family:
        """Return the kind of the candidate."""
        strategy = "+".join(pin.preset for pin in self.choice.pins) or "search"
        mesh = tuple((axis.name, axis.size) for axis in self.layout.mesh.spatial)
        return Family(self.layout.mode, strategy, mesh, self.choice.balanced)


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
    names = [f"{name} over {'-'.join(axes)}" if len(parts) > 1 else name for name, axes in parts]
    pins = tuple(Pin(preset=name, axes=axes) for name, axes in parts)
    return Choice(", ".join(names), pins, COMPLETION)


def searched(parameters: float, activations: float, *, bucketed: bool = True) -> Choice:
    """
    Return the search for the optimum of an objective that counts only a part of the seconds of collectives.

    Args:
        parameters: factor for collectives that overlap compute.
        activations: factor for collectives that block compute.
        bucketed: whether the former pay latency in proportion to their bytes, as in full buckets, or one by one.
    """
    weights = Weights(parameters=parameters, activations=activations, bucketed=bucketed)
    suffix = "" if bucketed else ", apart"
    return Choice(f"search({parameters:g}, {activations:g}{suffix})", (), weights)


DATA_PARALLEL = ("dp", "zero1", "zero3")
"""The presets of data parallelism; `zero2` makes the same program as `zero1`."""


def presets(mesh: Mesh) -> list[Choice]:
    """
    Return the strategies that people write by hand: data parallelism over the outer axes, with ZeRO-3 over the inner
    part of them, and tensor parallelism over the inner axes.
    """
    axes = tuple(axis.name for axis in mesh.spatial if axis.size > 1)
    choices: list[Choice] = []
    for count in range(len(axes), 0, -1):
        outer, inner = axes[:count], axes[count:]
        inside = [("tp", inner)] if inner else []
        choices += [preset((name, outer), *inside) for name in DATA_PARALLEL]
        choices += [preset(("dp", outer[:at]), ("zero3", outer[at:]), *inside) for at in range(1, count)]
    return [*choices, preset(("tp", axes))] if axes else [preset(("dp", axes))]
