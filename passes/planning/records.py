"""Candidates as plain records, which `plan.json` and an attribute hold: to be made again from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...ir.mesh import Axis, Mesh
from ...ir.pins import Pin
from ...ir.sharding import parse_sharding
from ..search.objective import Weights
from .candidates import Candidate, Choice, Family, Layout

Record = dict[str, Any]
"""Text, numbers, lists and further records, by name."""


@dataclass(frozen=True)
class Chosen:
    """
    The candidate that a search chose, with all that is needed to make it again from the step before any decision.

    Args:
        pins: what every candidate had to obey.
        own_mesh: the cluster's.
    """

    candidate: Candidate
    pins: tuple[Pin, ...]
    own_mesh: Mesh

    def record(self) -> Record:
        """The record of it."""
        layout, choice = self.candidate.layout, self.candidate.choice
        found: Record = {
            "mesh": _sizes(layout.mesh),
            "mode": layout.mode,
            "parts": layout.parts,
            "stages": layout.stages,
            "fused": layout.fused,
            "choice": {
                "name": choice.name,
                "pins": [_pin_record(pin) for pin in choice.pins],
                "weights": asdict(choice.weights),
                "balanced": choice.balanced,
                "fits": choice.fits,
            },
            "pins": [_pin_record(pin) for pin in self.pins],
            "own_mesh": _sizes(self.own_mesh),
        }
        found |= {"schedule": layout.schedule} if layout.schedule is not None else {}
        found |= {"chunked": True} if layout.chunked else {}
        return found | ({"keep": layout.keep} if layout.keep < 1 else {})

    @staticmethod
    def read(record: Mapping[str, Any], mesh_name: str = "mesh") -> Chosen:
        """What `record` wrote; KeyError, TypeError or ValueError where it is something else."""
        choice = record["choice"]
        layout = Layout(
            _mesh(record["mesh"], mesh_name),
            record["mode"],
            record["parts"],
            record["stages"],
            record.get("schedule"),
            record["fused"],
            record.get("keep", 1.0),
            record.get("chunked", False),
        )
        pins = tuple(map(_read_pin, choice["pins"]))
        made = Choice(choice["name"], pins, Weights(**choice["weights"]), choice["balanced"], choice["fits"])
        given = tuple(map(_read_pin, record["pins"]))
        return Chosen(Candidate(layout, made), given, _mesh(record["own_mesh"], mesh_name))


def family_record(family: Family) -> Record:
    """The record of a family."""
    return {**asdict(family), "mesh": dict(family.mesh)}


def read_family(record: Mapping[str, Any]) -> Family:
    """What `family_record` wrote."""
    return Family(record["mode"], record["strategy"], tuple(record["mesh"].items()), record["balanced"])


def _sizes(mesh: Mesh) -> dict[str, int]:
    return {axis.name: axis.size for axis in mesh.spatial}


def _mesh(sizes: Mapping[str, int], name: str) -> Mesh:
    return Mesh(tuple(Axis(axis, size) for axis, size in sizes.items()), name)


def _pin_record(pin: Pin) -> Record:
    if pin.sharding is not None:
        return {"value": pin.value, "sharding": str(pin.sharding)}
    axes = {"axes": list(pin.axes)} if pin.axes is not None else {}
    return {"preset": pin.preset, **axes}


def _read_pin(record: Mapping[str, Any]) -> Pin:
    if "sharding" in record:
        return Pin(record["value"], parse_sharding(record["sharding"]))
    axes = record.get("axes")
    return Pin(preset=record["preset"], axes=tuple(axes) if axes is not None else None)
