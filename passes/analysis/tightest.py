"""Which rank comes closest to the memory that it may use."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from ...ir.cluster import Cluster
from ..step.step_view import StepView, step_views
from .memory import MemoryPeak, peak_memory
from .memory_roles import MemoryRole


@dataclass(frozen=True)
class TightestRank:
    """
    The rank of a step function, or of one stage of it, that comes closest to its limit, or exceeds it by most.

    Args:
        limit: of that rank, in bytes.
    """

    view: StepView
    peak: MemoryPeak
    limit: float

    @property
    def bytes(self) -> int:
        """The most that the rank holds."""
        return self.peak.bytes

    @property
    def lasting(self) -> int:
        """The bytes of parameters and optimizer states, which are held throughout the step."""
        return self.peak.by_role[MemoryRole.PARAMETERS] + self.peak.by_role[MemoryRole.STATES]

    @property
    def excess(self) -> float:
        """By how many bytes the rank exceeds its limit; negative where there is room left."""
        return self.peak.bytes - self.limit


def tightest_rank(view: StepView, cluster: Cluster, limit: float | None = None) -> TightestRank:
    """
    The tightest rank of a function or stage.

    Args:
        limit: of every rank, in bytes; by default the memory of its device.
    """
    ranks = range(cluster.mesh.device_count)
    limits = [cluster.device(rank).memory if limit is None else limit for rank in ranks]
    peak = peak_memory(view.func, cluster.mesh, limits, view.stage, cluster.blocks)
    return TightestRank(view, peak, limits[peak.rank])


def tightest_ranks(module: ModuleOp) -> list[TightestRank]:
    """The tightest rank of every step function of a module, or of every stage, by the memory of devices."""
    return [tightest_rank(view, cluster) for view, cluster in step_views(module)]
