"""The record of a plan for `replan`: the candidate that makes it, its cluster, and the placement of its state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ..dialects import train
from ..dialects.compute import element_bytes, shape_of
from ..dialects.step import sharding_of
from ..ir.cluster import Cluster
from ..ir.cluster_file import cluster_toml, parse_cluster
from ..ir.mesh import Mesh
from ..ir.sharding import Sharding, local_slices
from ..ir.state_moves import Box, SpreadState
from ..ir.text_file import read_text
from ..passes.planning.records import CandidateRecord, Chosen
from ..passes.step.step_view import Input, StepView, cluster_of_module, step_functions, step_views
from .plan_report import PlanReport

LASTING = (train.PARAM, train.STATE, train.BUFFER)
"""The roles of arguments that form the state of a step."""


def lasting_values(module: ModuleOp) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield the name, shape and element size in bytes of each parameter, state and buffer of a step, planned or not."""
    views = (StepView(func, Mesh(())) for func in step_functions(module))
    for given in (given for view in views for given in view.inputs):
        if given.role in LASTING:
            yield _name(given), shape_of(given.argument), element_bytes(given.argument)


def state_placement(module: ModuleOp) -> list[SpreadState]:
    """Return the parameters, optimizer states and buffers of a planned module, with the box of each rank."""
    state: list[SpreadState] = []
    first = 0
    for view, cluster in step_views(module):
        mesh = cluster.mesh
        known_boxes: dict[tuple[tuple[int, ...], Sharding], dict[int, Box]] = {}
        for given in view.inputs:
            if given.role not in LASTING:
                continue
            shape, sharding = shape_of(given.argument), sharding_of(given.argument)
            if (boxes := known_boxes.get((shape, sharding))) is None:
                boxes = known_boxes[shape, sharding] = {
                    first + rank: tuple((part.start, part.stop) for part in local_slices(shape, sharding, mesh, rank))
                    for rank in range(mesh.device_count)
                }
            state.append(SpreadState(_name(given), boxes, element_bytes(given.argument)))
        if view.stage is not None:
            first += mesh.device_count
    return state


def _name(given: Input) -> str:
    return f"{given.role.rpartition('.')[2]} {given.name}"


RECORD = "replan.json"
"""The file of the record, in a plan's folder and in a checkpoint."""

_VERSION = 1


@dataclass(frozen=True)
class PlanRecord:
    """
    A plan that `replan` can start from.

    Args:
        step: the step's name for the runtime, or None if the step was given as objects.
        candidate: the `chosen_candidate` of `plan.json`, which reproduces the plan, or None without a search.
        cluster: the cluster of the plan, on the plan's mesh.
        state: the placement of the parameters, states and buffers.
        adapted: whether the plan was derived from a plan for another cluster, whose candidate it has.
    """

    name: str
    step: str | None
    candidate: CandidateRecord | None
    cluster: Cluster
    state: Sequence[SpreadState]
    adapted: bool = False

    @staticmethod
    def of(module: ModuleOp, report: PlanReport) -> PlanRecord:
        """Return the record of a planned module and its report, `plan.json`."""
        chosen = report.get("chosen_candidate")
        cluster = cluster_of_module(module)
        adapted = bool(report.get("replan", {}).get("adapted", False))
        return PlanRecord(report["name"], report["step"], chosen, cluster, state_placement(module), adapted)

    def text(self, digest: str = "") -> str:
        """
        Return the record as JSON.

        Args:
            digest: digest of the file with the plan, so that a reader can check that both belong together.
        """
        groups: dict[tuple[int, int], dict[str, Any]] = {}
        for spread in self.state:
            # Values with the same shape and sharding share one `boxes` object.
            key = spread.element, id(spread.boxes)
            group = groups.setdefault(key, {"element": spread.element, "values": [], "boxes": spread.boxes})
            group["values"].append(spread.name)
        details = {"version": _VERSION, "of": digest, "name": self.name, "step": self.step}
        details |= {"candidate": self.candidate, "adapted": self.adapted}
        return json.dumps({**details, "cluster": cluster_toml(self.cluster), "state": list(groups.values())}) + "\n"

    @staticmethod
    def read(path: Path, digest: str = "") -> PlanRecord:
        """
        Read a record from a file.

        Raises:
            OSError: the file does not exist.
            ValueError: the file is not a record, has another version, or has another digest.
        """
        try:
            record = json.loads(read_text(path))
            if record["version"] != _VERSION or record["of"] != digest:
                raise ValueError("it belongs to another plan, or was written by another version")
            cluster = parse_cluster(record["cluster"], str(path))
            state = [spread for group in record["state"] for spread in _spreads(group)]
            if record["candidate"] is not None:
                Chosen.read(record["candidate"], cluster.mesh.name)
            adapted = record["adapted"] is True
            return PlanRecord(record["name"], record["step"], record["candidate"], cluster, state, adapted)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def _spreads(group: Mapping[str, Any]) -> list[SpreadState]:
    boxes: dict[int, Box] = {
        int(rank): tuple((int(begin), int(end)) for begin, end in box) for rank, box in group["boxes"].items()
    }
    if not boxes or len({len(box) for box in boxes.values()}) > 1:
        raise ValueError("a value is on no rank, or has different numbers of dims on different ranks")
    return [SpreadState(str(name), boxes, int(group["element"])) for name in group["values"]]
