"""Records of candidates, which `plan.json` and an attribute of the function hold, so that plans can be made again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypeAlias, TypedDict, cast

from ...ir.mesh import Axis, Mesh
from ...ir.pins import Pin
from ...ir.sharding import parse_sharding
from ..search.objective import Weights
from ..stages.schedules import ScheduleName
from .candidates import Candidate, Choice, Layout, Mode

_RARE = ("schedule", "keep", "chunked", "chunks", "ranks", "per_part")
"""The fields of a layout that a record omits if they have their default."""


class ShardingPinRecord(TypedDict):
    """A pin of the values that match a glob."""

    value: str
    sharding: str


class PresetPinRecord(TypedDict):
    """A pinned preset."""

    preset: str
    axes: NotRequired[list[str]]


PinRecord: TypeAlias = ShardingPinRecord | PresetPinRecord


class WeightsRecord(TypedDict):
    """The factors of seconds in the objective."""

    contractions: float
    others: float
    parameters: float
    activations: float
    bucketed: bool


class ChoiceRecord(TypedDict):
    """The way that a strategy was found; older versions wrote a name, too."""

    name: NotRequired[str]
    pins: list[PinRecord]
    weights: WeightsRecord
    balanced: bool
    fits: bool


class CandidateRecord(TypedDict):
    """A candidate, with all that is needed to make the plan again."""

    mesh: dict[str, int]
    mode: Mode
    parts: int
    stages: int
    fused: bool
    choice: ChoiceRecord
    pins: list[PinRecord]
    own_mesh: dict[str, int]
    schedule: NotRequired[ScheduleName]
    keep: NotRequired[float]
    chunked: NotRequired[bool]
    chunks: NotRequired[int]
    ranks: NotRequired[list[int]]
    per_part: NotRequired[bool]


@dataclass(frozen=True)
class Chosen:
    """
    The candidate that a search chose, with all that is needed to make it again from the step before any decision.

    Args:
        pins: pins that every candidate had to obey.
        own_mesh: mesh of the cluster.
    """

    candidate: Candidate
    pins: tuple[Pin, ...]
    own_mesh: Mesh

    def record(self) -> CandidateRecord:
        """Return the record of the chosen candidate."""
        layout, choice = self.candidate.layout, self.candidate.choice
        rare = {name: getattr(layout, name) for name in _RARE if getattr(layout, name) != getattr(Layout, name)}
        fields = {
            "mesh": _sizes(layout.mesh),
            **{name: getattr(layout, name) for name in ("mode", "parts", "stages", "fused")},
            "choice": {**asdict(choice), "pins": [_pin_record(pin) for pin in choice.pins]},
            "pins": [_pin_record(pin) for pin in self.pins],
            "own_mesh": _sizes(self.own_mesh),
            **rare,
        }
        return cast("CandidateRecord", fields)

    @staticmethod
    def read(record: CandidateRecord, mesh_name: str = "mesh") -> Chosen:
        """Read a record that `record` wrote; other records raise KeyError, TypeError or ValueError."""
        all_axes = ([Axis(*axis) for axis in record[key].items()] for key in ("mesh", "own_mesh"))
        mesh, own_mesh = (Mesh(tuple(axes), mesh_name) for axes in all_axes)
        rare: dict[str, Any] = {name: record.get(name) for name in _RARE if name in record}
        if "ranks" in rare:
            rare["ranks"] = tuple(rare["ranks"])
        layout = Layout(mesh, record["mode"], record["parts"], record["stages"], fused=record["fused"], **rare)
        pins, all_pins = (tuple(map(_read_pin, pins)) for pins in (record["choice"]["pins"], record["pins"]))
        choice: dict[str, Any] = {**record["choice"], "pins": pins, "weights": Weights(**record["choice"]["weights"])}
        choice.pop("name", None)
        return Chosen(Candidate(layout, Choice(**choice)), all_pins, own_mesh)


def _sizes(mesh: Mesh) -> dict[str, int]:
    return {axis.name: axis.size for axis in mesh.spatial}


def _pin_record(pin: Pin) -> PinRecord:
    if pin.sharding is not None:
        return {"value": pin.value, "sharding": str(pin.sharding)}
    if pin.axes is not None:
        return {"preset": pin.preset, "axes": list(pin.axes)}
    return {"preset": pin.preset}


def _read_pin(record: PinRecord) -> Pin:
    if "sharding" in record:
        return Pin(record["value"], parse_sharding(record["sharding"]))
    axes = record.get("axes")
    return Pin(preset=record["preset"], axes=tuple(axes) if axes is not None else None)
