"""The record of a plan for `replan`: how it was made, for which cluster, and where the state of its step is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ..ir.cluster import Cluster
from ..ir.cluster_file import cluster_toml, parse_cluster
from ..ir.state_moves import Box, SpreadState
from ..ir.text_file import read_text
from ..passes.planning.records import CandidateRecord, Chosen
from ..passes.step.step_view import cluster_of_module
from .plan_report import PlanReport
from .state_placement import state_placement

RECORD = "replan.json"
"""The file that has it, in a plan's folder and in a checkpoint."""

_VERSION = 1


@dataclass(frozen=True)
class PlanRecord:
    """
    A plan that `replan` begins from.

    Args:
        name: of the program.
        step: where the runtime finds the step; None where it was given as objects.
        candidate: what makes the plan again, as `chosen_candidate` of `plan.json`; None where it was not searched for.
        cluster: that it was planned for, on its mesh.
        state: where the parameters, states and buffers are.
        adapted: whether it was made of the plan of another cluster, which had the candidate.
    """

    name: str
    step: str | None
    candidate: CandidateRecord | None
    cluster: Cluster
    state: Sequence[SpreadState]
    adapted: bool = False

    @staticmethod
    def of(module: ModuleOp, report: PlanReport) -> PlanRecord:
        """That of a planned module and its report, `plan.json`."""
        chosen = report.get("chosen_candidate")
        found = cluster_of_module(module)
        adapted = bool(report.get("replan", {}).get("adapted", False))
        return PlanRecord(report["name"], report["step"], chosen, found, state_placement(module), adapted)

    def text(self, digest: str = "") -> str:
        """
        The record as JSON.

        Args:
            digest: of the file that the plan is in, for whoever reads both.
        """
        groups: dict[tuple[int, int], dict[str, Any]] = {}
        for spread in self.state:
            # Values that are spread alike share their boxes.
            key = spread.element, id(spread.boxes)
            group = groups.setdefault(key, {"element": spread.element, "values": [], "boxes": spread.boxes})
            group["values"].append(spread.name)
        details = {"version": _VERSION, "of": digest, "name": self.name, "step": self.step}
        details |= {"candidate": self.candidate, "adapted": self.adapted}
        return json.dumps({**details, "cluster": cluster_toml(self.cluster), "state": list(groups.values())}) + "\n"

    @staticmethod
    def read(path: Path, digest: str = "") -> PlanRecord:
        """
        The record in a file.

        Raises:
            OSError: there is none.
            ValueError: the file is no record, one of another version, or of a file with another digest.
        """
        try:
            found = json.loads(read_text(path))
            if found["version"] != _VERSION or found["of"] != digest:
                raise ValueError("it belongs to another plan, or was written by another version")
            cluster = parse_cluster(found["cluster"], str(path))
            state = [spread for group in found["state"] for spread in _spreads(group)]
            if found["candidate"] is not None:
                Chosen.read(found["candidate"], cluster.mesh.name)
            adapted = found["adapted"] is True
            return PlanRecord(found["name"], found["step"], found["candidate"], cluster, state, adapted)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def _spreads(group: Mapping[str, Any]) -> list[SpreadState]:
    boxes: dict[int, Box] = {
        int(rank): tuple((int(begin), int(end)) for begin, end in box) for rank, box in group["boxes"].items()
    }
    if not boxes or len({len(box) for box in boxes.values()}) > 1:
        raise ValueError("a value is on no rank, or has different numbers of dims on different ranks")
    return [SpreadState(str(name), boxes, int(group["element"])) for name in group["values"]]
