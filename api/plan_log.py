"""
The log messages of `parallelize`, to the logger ``shardwright`` on rank 0.

Without any configuration of `logging` they appear on standard error. ``logging.getLogger("shardwright").setLevel(
logging.WARNING)`` before `parallelize` silences all but warnings.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from math import prod
from time import perf_counter

import torch

from ..ir.units import bytes_text, seconds_text
from ..passes.planning.legend import legend
from ..passes.planning.summary import Tried
from ..runtime.groups import job_rank
from ..runtime.plan import Plan
from .plan_report import PlanReport, mesh_text, plan_name, step_text
from .why_not import difference

LOG = logging.getLogger("shardwright")


class _OnStandardError(logging.Handler):
    """Writes messages to standard error until the user configures logging; warnings as `logging` itself does then."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            tool = "shardwright: " if record.levelno < logging.WARNING else ""
            sys.stderr.write(f"{tool}{self.format(record)}\n")
            sys.stderr.flush()


def is_first_rank() -> bool:
    """Return whether this process writes the log of the job."""
    return job_rank() == 0


class PhaseLog:
    """Logs each phase of `parallelize` with its seconds on rank 0, and shows the log if logging is not configured."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._began = perf_counter()
        self._phase, self._searched = "", False
        self._is_first = is_first_rank()
        if self._is_first and not LOG.hasHandlers():
            LOG.addHandler(_OnStandardError())
            LOG.setLevel(LOG.level or logging.INFO)

    def __call__(self, phase: str) -> None:
        """Take the name of the next phase of `compile_step`; the search logs its own line."""
        if self._phase == "import" and phase != "import":
            self.ended("captured the step")
        elif self._phase == _SEARCH and not self._searched:
            self._searched, self._began = True, perf_counter()
        self._phase = phase

    def ended(self, what: str) -> None:
        """Log the end of a phase, and the seconds since the end of the phase before."""
        now = perf_counter()
        if self._is_first:
            LOG.info("%s: %s in %s", self.name, what, seconds_text(now - self._began))
        self._began = now


_SEARCH = "search-plan"


def log_first_step(report: PlanReport, loss: torch.Tensor, began: float) -> None:
    """Log the seconds of the first step, which also allocates, connects and compiles, by `perf_counter`."""
    if not is_first_rank():
        return
    if loss.device.type == "cuda":
        torch.cuda.synchronize(loss.device)
    text = "%s: first step in %s; the prediction for later steps is %s"
    LOG.info(text, report["name"], seconds_text(perf_counter() - began), step_text(report))


def log_plan(report: PlanReport, plans: Sequence[Plan], seconds: float) -> None:
    """
    Log a plan: a summary at level INFO, candidates and pass times at DEBUG, and a warning if the plan splits nothing.

    Args:
        seconds: the time that the user waited for the plan.
    """
    name = report["name"]
    mesh = mesh_text(report)
    chosen = plan_name(report)
    LOG.info("%s: planned in %s for %d ranks (%s): %s", name, seconds_text(seconds), report["ranks"], mesh, chosen)
    LOG.info(
        "%s: predicted step %s, of which %s waiting for communication; peak memory of a rank %s",
        name,
        step_text(report),
        seconds_text(report["predicted_exposed_communication_s"]),
        bytes_text(max(report["peak_bytes"])),
    )
    if idle := report.get("idle"):
        text = '%s: ranks %s idle: the step is faster without them%s; idle="no" uses all'
        LOG.warning(text, name, idle, one_device(report) if len(idle) == report["ranks"] - 1 else "")
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
            "%s: the plan splits nothing: each of %d ranks computes the full step%s: by the cluster description, "
            'communication costs more than it saves, or nothing can be split; pins="dp" splits the batch regardless',
            name,
            report["ranks"],
            one_device(report),
        )


def one_device(report: PlanReport) -> str:
    """Return the predicted times of a plan whose work is on one device, and of data parallelism if it was tried."""
    step, text = report["predicted_step_s"], f" (one device takes {seconds_text(report['predicted_step_s'])}"
    tried = (each for each in map(Tried.from_dict, report["candidates"]) if _is_data_parallel(each, report["ranks"]))
    *_, (seconds, exposed) = (None, None), *((each.step, each.exposed) for each in tried)
    if seconds is None:
        return f"{text})"
    least = "" if exposed is not None else "at least "
    return f"{text}, data parallelism on all {least}{seconds_text(seconds)}, {difference(seconds - step, step)})"


def _is_data_parallel(candidate: Tried, ranks: int) -> bool:
    """Return whether a candidate is plain data parallelism over all ranks."""
    if (family := candidate.family) is None or family["balanced"] or family["strategy"] != "dp":
        return False
    return family["mode"] == "whole" and prod(family["mesh"].values()) == ranks


def splits_nothing(plans: Sequence[Plan]) -> bool:
    """Return whether every rank computes the same."""
    plans = [plan for plan in plans if plan.inputs] or plans
    if len(plans) > 1 or plans[0].mesh.device_count == 1:
        return False
    (plan,) = plans
    return not plan.groups and not any(value.spread.split_axes for value in plan.inputs)
