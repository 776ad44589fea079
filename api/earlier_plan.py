"""Planning that starts from the plan of an earlier run, stored in its folder or with its checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..ir.cluster import Cluster
from ..ir.submesh import on_mesh
from ..passes.errors import PassError
from ..runtime.checkpoint import checkpoints
from .compile import CompiledStep, PlanOptions
from .files import plan_digest
from .plan_record import RECORD, PlanRecord
from .replan import OtherStepError, transition

LOG = logging.getLogger("shardwright")


@dataclass(frozen=True)
class EarlierPlan:
    """A plan of an earlier run."""

    record: PlanRecord
    folder: Path

    @staticmethod
    def find(folder: Path) -> EarlierPlan | None:
        """
        Return the plan in a folder of `shardwright plan`, or in the newest checkpoint of a folder of checkpoints.

        Return None if the folder has no plan, as at the first start, or, with a warning, if its plan cannot be read.
        """
        places = [folder] if (folder / RECORD).exists() else [folder / name for name in checkpoints(folder)]
        for place in places:
            try:
                return EarlierPlan(PlanRecord.read(place / RECORD, plan_digest(place)), place)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                LOG.warning("planning does not start from the plan in %s: %s", place, error)
        return None

    def made(
        self, compiled: Callable[[PlanOptions], list[CompiledStep]], asked: PlanOptions, cluster: Cluster
    ) -> list[CompiledStep]:
        """
        Return the plans that are compiled with options that start from this plan.

        On the plan's own cluster this is the plan itself, and on another cluster an adaptation of it. If this plan did
        not come from a search, it has no candidate, and the step is compiled as requested.
        """
        if self.record.candidate is None:
            return [self._logged(each, cluster, adapted=False) for each in compiled(asked)]
        # Drop the pins: the user may no longer request them.
        candidate = json.dumps({**self.record.candidate, "pins": []})
        mesh = self.record.cluster.mesh
        is_same_size = mesh.device_count == cluster.mesh.device_count
        if is_same_size and on_mesh(cluster, mesh) == self.record.cluster and not self.record.adapted:
            # If the plan does not satisfy the present options, search with them.
            with suppress(PassError):
                steps = compiled(replace(asked, candidate=candidate, budget=None))
                return [self._logged(each, cluster, adapted=False) for each in steps]
        steps = compiled(replace(asked, candidate=candidate, adapt=True))
        return [self._logged(each, cluster, adapted=True) for each in steps]

    def _logged(self, made: CompiledStep, cluster: Cluster, *, adapted: bool) -> CompiledStep:
        """Return a plan whose report says which state must move if every old rank keeps its number."""
        old = self.record
        try:
            state = transition(old, made.module, cluster, range(old.cluster.mesh.device_count))
        except OtherStepError as error:
            LOG.warning("%s: %s", self.folder, error)
            return made
        origin = {"from": str(self.folder), "from_ranks": old.cluster.mesh.device_count, "adapted": adapted}
        return replace(made, report={**made.report, "replan": {**origin, **state.report()}})
