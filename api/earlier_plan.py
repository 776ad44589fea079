"""Beginning from the plan of an earlier run, which is kept in its folder or with its checkpoints."""

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
    """
    A plan that an earlier run had.

    Args:
        folder: that it was found in.
    """

    record: PlanRecord
    folder: Path

    @staticmethod
    def find(folder: Path) -> EarlierPlan | None:
        """
        The plan in a folder of `shardwright plan`, or that of the newest checkpoint in a folder of checkpoints; None
        where there is none, as at the first start, or, with a warning, where none can be read.
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
        What is compiled with options that begin from this plan: the plan itself on its own cluster, and one made of it
        on another; as asked where it was not searched for.
        """
        if self.record.candidate is None:
            return [self._logged(each, cluster, adapted=False) for each in compiled(asked)]
        # What it was to obey may be no longer asked for.
        candidate = json.dumps({**self.record.candidate, "pins": []})
        if self._is_for(cluster) and not self.record.adapted:
            # Other options than then, to which it is no answer, are for a search.
            with suppress(PassError):
                found = compiled(replace(asked, candidate=candidate, budget=None))
                return [self._logged(each, cluster, adapted=False) for each in found]
        found = compiled(replace(asked, candidate=candidate, adapt=True))
        return [self._logged(each, cluster, adapted=True) for each in found]

    def _is_for(self, cluster: Cluster) -> bool:
        mesh = self.record.cluster.mesh
        return mesh.device_count == cluster.mesh.device_count and on_mesh(cluster, mesh) == self.record.cluster

    def _logged(self, made: CompiledStep, cluster: Cluster, *, adapted: bool) -> CompiledStep:
        """A plan whose report says what state has to be moved if every old rank keeps its number."""
        old = self.record
        try:
            state = transition(old, made.module, cluster, range(old.cluster.mesh.device_count))
        except OtherStepError as error:
            LOG.warning("%s: %s", self.folder, error)
            return made
        begun = {"from": str(self.folder), "from_ranks": old.cluster.mesh.device_count, "adapted": adapted}
        return replace(made, report={**made.report, "replan": {**begun, **state.report()}})
