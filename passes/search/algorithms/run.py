"""Run an algorithm on a step, and write its strategy."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from ....dialects.compute import ComputeOp
from ....ir.cluster import Cluster
from ...step.step_view import StepView, value_label
from ..constraints import Constraints
from ..decided import write_strategy
from ..objective import Weights
from ..problem import Infeasible, TooManyError
from ..strategy import build_problem
from ..within_memory import ConstrainedSolution
from .interface import Effort, SearchTask
from .table import AlgorithmName, UnknownPartError, find_algorithm


def search_within(
    view: StepView,
    cluster: Cluster,
    constraints: Constraints,
    budget: float,
    algorithm: AlgorithmName = "eliminate",
    weights: Weights = Weights(),
    effort: Effort = Effort(),
) -> ConstrainedSolution:
    """Search a strategy for a step function or one stage, within `budget` bytes per device, and write it to the IR."""
    task = SearchTask(
        view,
        cluster,
        lambda prices: build_problem(view, cluster, constraints, weights, prices),
        budget,
        effort,
    )
    try:
        solution = find_algorithm(algorithm, effort.without)(task)
    except UnknownPartError as error:
        raise PassFailedException(str(error)) from error
    except TooManyError as error:
        raise PassFailedException(f"{error}; use another algorithm, such as algorithm=eliminate") from error
    except Infeasible as error:
        subjects = [task.free.decisions[node].subject for node in error.nodes[:4]]
        names = ", ".join(map(_subject_name, subjects))
        pins = constraints.named([by for subject in subjects for by in constraints.pinned_by(subject)])
        conflict = f"no strategy satisfies all constraints: {names} cannot be sharded together; relax {pins}"
        raise PassFailedException(conflict) from error
    write_strategy(view, solution.strategy)
    return solution


def _subject_name(subject: ComputeOp | SSAValue) -> str:
    if isinstance(subject, ComputeOp):
        return f"'{subject.name}' {value_label(subject.outs[0]) if subject.outs else ''}".strip()
    return value_label(subject)
