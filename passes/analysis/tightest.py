"""Find the rank that comes closest to the memory that it may use."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from ...ir.cluster import Cluster
from ..step.step_view import StepView, step_functions, step_views
from .memory import MemoryPeak, peak_memory
from .memory_roles import MemoryRole, Roles


@dataclass(frozen=True)
class TightestRank:
    """
    The rank of a step function, or of one stage of it, that comes closest to its limit, or exceeds it by most.

    Args:
        limit: bytes that this rank may use.
    """

    view: StepView
    peak: MemoryPeak
    limit: float

    @property
    def bytes(self) -> int:
        """Return the most bytes that the rank holds."""
        return self.peak.bytes

    @property
    def lasting(self) -> int:
        """Return the bytes of parameters and optimizer states, which are held throughout the step."""
        return self.peak.by_role[MemoryRole.PARAMETERS] + self.peak.by_role[MemoryRole.STATES]

    @property
    def excess(self) -> float:
        """Return the bytes above the rank's limit; negative if memory is left."""
        return self.peak.bytes - self.limit


def tightest_rank(
    view: StepView, cluster: Cluster, limit: float | None = None, roles: Roles | None = None
) -> TightestRank:
    """
    Return the tightest rank of a function or stage.

    Args:
        limit: bytes that every rank may use; by default the memory of its device.
        roles: the roles of the function's values, if they are known.
    """
    ranks = range(cluster.mesh.device_count)
    limits = [cluster.device(rank).memory if limit is None else limit for rank in ranks]
    peak = peak_memory(view.func, cluster.mesh, limits, view.stage, cluster.blocks, roles)
    return TightestRank(view, peak, limits[peak.rank])


def tightest_ranks(module: ModuleOp) -> list[TightestRank]:
    """Return the tightest rank of every step function of a module, or of every stage, by the memory of devices."""
    roles = {func: Roles(func) for func in step_functions(module)}
    return [tightest_rank(view, cluster, roles=roles[view.func]) for view, cluster in step_views(module)]
