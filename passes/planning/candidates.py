"""What a plan is chosen from: layouts over devices and time, and on each of them a way to find a strategy."""

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
    How a step is laid out over devices and over time.

    Args:
        mesh: of all devices.
        mode: the batch whole; in parts one after the other; in parts that take turns; or through stages.
        parts: into how many the batch is cut.
        stages: of a pipeline.
        schedule: of a pipeline.
        fused: whether batch-norms stay single ops, whose statistics are of what each device has of them whole.
        keep: what part of the bytes that backward needs of forward is kept at most; the rest is computed again.
        chunked: whether products and their collectives are cut in parts (`chunk-collectives`).
        chunks: how many chunks of layers each stage of a pipeline has at most.
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
        """The layout in words: `4x16`, `4x16 in 8 parts`, `4 stages of 4x16, 8 micro-batches, 1f1b`."""
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
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda each: each[1] - each[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@dataclass(frozen=True)
class Choice:
    """
    How the strategy on a layout is found.

    Args:
        name: of a preset, or how it is searched.
        pins: what it must obey.
        weights: of the objective.
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
    What kind of candidate one is, so that the candidates of a kind can be found without reading their names.

    Args:
        mode: of its layout.
        strategy: its presets, outermost first, as `dp` or `dp+tp`; `search` where it has none.
        mesh: the axes of all devices with their sizes.
        balanced: whether devices have shares by their speed.
    """

    mode: Mode
    strategy: str
    mesh: tuple[tuple[str, int], ...]
    balanced: bool = False

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets by themselves, outermost first."""
        return tuple(self.strategy.split("+"))


@dataclass(frozen=True)
class Candidate:
    """A layout with a way to find its strategy."""

    layout: Layout
    choice: Choice

    @property
    def name(self) -> str:
        """What to call it in reports."""
        shares = ", shares by speed" if self.choice.balanced else ""
        return f"{self.choice.name} on {self.layout.name}{shares}"

    @property
    def family(self) -> Family:
        """What kind of candidate it is."""
        strategy = "+".join(pin.preset for pin in self.choice.pins) or "search"
        mesh = tuple((axis.name, axis.size) for axis in self.layout.mesh.spatial)
        return Family(self.layout.mode, strategy, mesh, self.choice.balanced)


def resized(candidate: Candidate, count: int, *, balanced: bool) -> list[Candidate]:
    """
    A candidate on another number of devices, the likeliest to keep the state where it is first: one axis has another
    size, the outermost that can; else that one alone has all devices.

    Args:
        balanced: whether the devices differ, so that shares by their speed may be the better ones.
    """
    axes = candidate.layout.mesh.spatial
    sizes: list[list[int]] = []
    for at, axis in enumerate(axes):
        others = candidate.layout.mesh.device_count // axis.size
        if count % others == 0:
            sizes.append([count // others if index == at else other.size for index, other in enumerate(axes)])
    sizes.append([count, *(1 for _ in axes[1:])])
    found: list[Candidate] = []
    for each in sizes:
        made = tuple(replace(axis, size=size) for axis, size in zip(axes, each, strict=True))
        layout = replace(candidate.layout, mesh=replace(candidate.layout.mesh, axes=made))
        for shares in (True, False) if balanced else (False,):
            found.append(Candidate(layout, replace(candidate.choice, balanced=shares)))
    return list(dict.fromkeys(found))


def preset(*parts: tuple[str, tuple[str, ...]]) -> Choice:
    """A preset, or several on axes of their own, outermost first: `(("dp", ("node",)), ("tp", ("gpu",)))`."""
    names = [f"{name} over {'-'.join(axes)}" if len(parts) > 1 else name for name, axes in parts]
    pins = tuple(Pin(preset=name, axes=axes) for name, axes in parts)
    return Choice(", ".join(names), pins, COMPLETION)


def searched(parameters: float, activations: float, *, bucketed: bool = True) -> Choice:
    """
    The optimum where collectives count in part: `parameters` of those that travel beside compute, `activations` of
    those that hold it up.

    Args:
        bucketed: whether the former pay for latency by their bytes, as in full buckets, or each by itself.
    """
    weights = Weights(parameters=parameters, activations=activations, bucketed=bucketed)
    each = "" if bucketed else ", apart"
    return Choice(f"search({parameters:g}, {activations:g}{each})", (), weights)


DATA_PARALLEL = ("dp", "zero1", "zero3")
"""The presets of data parallelism; zero2 is the program of zero1 here."""


def presets(mesh: Mesh) -> list[Choice]:
    """
    Return the strategies that people write by hand: data parallelism over the outer axes, with ZeRO-3 over the inner
    part of them, and tensor parallelism over the inner axes.
    """
    axes = tuple(axis.name for axis in mesh.spatial if axis.size > 1)
    found: list[Choice] = []
    for count in range(len(axes), 0, -1):
        outer, inner = axes[:count], axes[count:]
        inside = [("tp", inner)] if inner else []
        found += [preset((name, outer), *inside) for name in DATA_PARALLEL]
        found += [preset(("dp", outer[:at]), ("zero3", outer[at:]), *inside) for at in range(1, count)]
    return [*found, preset(("tp", axes))] if axes else [preset(("dp", axes))]
