"""The log messages of `parallelize` about a plan, to the logger ``shardwright`` on rank 0."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..ir.units import bytes_text, seconds_text
from ..passes.planning.legend import legend
from ..runtime.plan import Plan
from .plan_report import PlanReport, step_text

LOG = logging.getLogger("shardwright")


def log_plan(report: PlanReport, plans: Sequence[Plan], seconds: float) -> None:
    """
    Log a plan: a summary at level INFO, candidates and pass times at DEBUG, and a warning if the plan splits nothing.

    Args:
        report: the contents of `plan.json`.
        plans: the plans of the stages.
        seconds: the time that the user waited for the plan.
    """
    name = report["name"]
    mesh = ", ".join(f"{axis}={size}" for axis, size in report["mesh"].items())
    chosen = report["chosen"] or "as pinned"
    LOG.info("%s: planned in %s for %d ranks (%s): %s", name, seconds_text(seconds), report["ranks"], mesh, chosen)
    LOG.info(
        "%s: predicted step %s, of which %s waiting for communication; peak memory of a rank %s",
        name,
        step_text(report),
        seconds_text(report["predicted_exposed_communication_s"]),
        bytes_text(max(report["peak_bytes"])),
    )
    if idle := report.get("idle"):
        LOG.warning('%s: ranks %s idle: the step is faster without them; idle="no" uses all', name, idle)
    if (origin := report.get("replan")) is not None:
        LOG.info(
            "%s: started from the plan of %d ranks in %s: %s of %s of state move to other ranks, %s at least",
            name,
            origin["from_ranks"],
            origin["from"],
            bytes_text(origin["moved_bytes"] + origin["lost_bytes"]),
            bytes_text(origin["state_bytes"]),
            bytes_text(origin["moved_bytes_bound"]),
        )
    for each in report.get("measured", ()):
        details = seconds_text(each["measured_step_s"]), seconds_text(each["predicted_step_s"])
        LOG.info("%s: measured %s: %s, predicted %s", name, each["plan"], *details)
    terms = legend([chosen, *(str(each["plan"]) for each in report.get("measured", ()))])
    if terms:
        LOG.info("%s: terms: %s", name, "; ".join(f"{term} = {meaning}" for term, meaning in terms.items()))
    for each in report["candidates"]:
        LOG.debug("%s: candidate %s", name, each)
    LOG.debug("%s: seconds of passes %s", name, report["pass_seconds"])
    if splits_nothing(plans):
        LOG.warning(
            "%s: the plan splits nothing: each of %d ranks computes the full step: by the cluster description, "
            'communication costs more than it saves, or nothing can be split; pins="dp" splits the batch regardless',
            name,
            report["ranks"],
        )


def splits_nothing(plans: Sequence[Plan]) -> bool:
    """Return whether every rank computes the same."""
    plans = [plan for plan in plans if plan.inputs] or plans
    if len(plans) > 1 or plans[0].mesh.device_count == 1:
        return False
    (plan,) = plans
    return not plan.groups and not any(value.spread.split_axes for value in plan.inputs)
