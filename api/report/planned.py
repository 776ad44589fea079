"""A plan with all that a report shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp

from ...ir.cluster import Cluster
from ...ir.measured_steps import MeasuredSteps
from ...passes.analysis.parallelism import ParameterSpread, spreads
from ...passes.analysis.simulation.results import RankClass, Simulation
from ...passes.analysis.simulation.simulate import simulate_module
from ...passes.step.step_view import StepView, cluster_of_module, step_views
from ..plan_report import PlanReport


class ReportError(RuntimeError):
    """An error about a report that cannot be made; the message says what to do."""


@dataclass(frozen=True)
class Planned:
    """
    A plan.

    Args:
        folder: folder of the plan, for commands that the page recommends.
        measured: measured steps of the plan, or None.
    """

    report: PlanReport
    module: ModuleOp
    folder: str = "PLAN"
    measured: MeasuredSteps | None = None

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster on the mesh of the plan."""
        return cluster_of_module(self.module)

    @cached_property
    def simulation(self) -> Simulation:
        """The predicted step."""
        simulations = simulate_module(self.module)
        if len(simulations) != 1:
            message = f"the IR of {self.folder} has {len(simulations)} step functions, expected one; plan again"
            raise ReportError(message)
        return simulations[0]

    @cached_property
    def views(self) -> list[StepView]:
        """The step, or its stages."""
        return [view for view, _ in step_views(self.module)]

    @cached_property
    def spreads(self) -> list[tuple[StepView, ParameterSpread]]:
        """The parameters of all stages."""
        return [(view, spread) for view in self.views for spread in spreads(view)]

    @cached_property
    def busiest(self) -> list[RankClass]:
        """The class of ranks of each stage that computes longest; idle ranks have none."""
        classes = [each for each in self.simulation.classes if any(self.simulation.ops(each.number))]
        return [self.simulation.busiest(stage) for stage in dict.fromkeys(each.stage for each in classes)]
