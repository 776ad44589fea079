"""
Check by the simulator whether searched plans are as fast as plans by hand, on many pairs of a step and a cluster.

    python benchmarks/plan_quality.py [--steps STEP ...] [--clusters CLUSTER ...] [--sample N] [--jobs N]
    python benchmarks/plan_quality.py --random N [--seed FIRST]
    python benchmarks/plan_quality.py --unequal
    python benchmarks/plan_quality.py --pairs STEP@CLUSTER ... [--only PART-OF-A-NAME] [--decisions]

`search-plan` plans each pair, and its plan is compared with plans by hand: data parallelism and ZeRO, Megatron's tensor
parallelism at every degree, hybrid sharding, even pipelines with every schedule, AMP's enumeration, and shares by speed
on mixed devices. A plan that does not fit is also tried with fewer activations kept. The plans by hand are pipelines of
passes (`_plain_plans.py`) that share no code with the search; only plans that fit in memory count. The default pairs
are every shipped step of full size with every shipped cluster. `--random N` generates clusters and steps from numbers
(`_random_pairs.py`); `--unequal` takes clusters whose links or devices differ much in speed.

`--decisions` also compares each plan with searches in which the user makes one decision: a pin, the number of stages,
duplex or not, all devices, even shares, or fewer activations kept. A decision only removes plans from the search,
so a step that is shorter with it shows that the free search missed a plan.

`--most` limits the number of plans by hand for each pair to a random selection, and `--seconds` limits their time. A
pair is listed as a failure if planning it crashes, gives an invalid plan, or is refused although a plain plan fits.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

# Set before torch is imported: with several planning processes, torch's threads only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from _plain_plans import Judged, Prepared, Workshop, judge_all, limited, need_of, plain_plans, step_seconds, tightest
from _random_pairs import PAIRS, PREFIX, find_any_cluster, find_step, number_of, random_step
from _report import arguments, parsed, plot, publish
from _steps import after, planned
from xdsl.dialects.builtin import ModuleOp, TensorType

from shardwright.api.compile import import_training_step
from shardwright.dialects.train import BATCH
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import shipped_clusters
from shardwright.models.registry import MODELS
from shardwright.passes.errors import PassError
from shardwright.passes.pipelines import SUM_BATCH_NORMS
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.step.step_view import step_functions
from shardwright.passes.verification import first_fault

TOLERANCE = 1e-6
"""Relative tolerance for equal simulated times."""

DECISIONS = (
    *(f"add-pins{{pins={preset}}},search-plan" for preset in ("dp", "zero1", "zero3", "tp")),
    "search-plan{stages=1 micro_batches=1}",
    "search-plan{stages=2}",
    "search-plan{duplex=yes}",
    "search-plan{duplex=no}",
    "search-plan{idle=no}",
    "search-plan{ratios=even}",
    "search-plan{keep_activations=0.5}",
)
"""Searches with one decision of the user."""


@dataclass(frozen=True)
class Options:
    """
    How pairs are compared.

    Args:
        plan: passes that search, as a pipeline string.
        most, seconds: limits on the number of plans by hand and on their time.
        only: text that the names of the plans by hand must contain.
        decisions: whether searches with one decision of the user count as plans by hand.
    """

    plan: str = "search-plan"
    most: int = 100_000
    seconds: float | None = None
    only: str | None = None
    decisions: bool = False

    def selects(self, name: str) -> bool:
        """Return whether the plan by hand with a name is compared."""
        return self.only is None or self.only in name


@dataclass
class Row:
    """
    The result of one pair: seconds of steps, and names of plans.

    Args:
        failure: why the search gave no plan or an invalid one; empty if it succeeded.
        fitting, refused: number of plans by hand that fit in memory, and number that could not be made.
        refusals: family and reason of each plan by hand that could not be made.
        losses: plans by hand that are faster, the fastest first, with the seconds of their steps.
    """

    step: str
    cluster: str
    devices: int = 0
    what: str = ""
    chosen: str = ""
    seconds: float | None = None
    failure: str = ""
    best: str = ""
    best_seconds: float | None = None
    fitting: int = 0
    refused: int = 0
    planning: float = 0.0
    candidates: int = 0
    bound: float | None = None
    losses: tuple[tuple[str, float], ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()

    @property
    def ratio(self) -> float | None:
        """Return the step time of the chosen plan relative to the best plan by hand."""
        if self.seconds is None or self.best_seconds is None:
            return None
        return self.seconds / self.best_seconds

    @property
    def gap(self) -> float | None:
        """Return 1 - bound / seconds, the largest reduction of the step time that the search's lower bound allows."""
        if self.seconds is None or self.bound is None:
            return None
        return 1.0 - self.bound / self.seconds

    @property
    def is_failure(self) -> bool:
        """Return whether the search failed; it may refuse a pair if no plan by hand fits either."""
        is_refusal = self.failure.startswith("refused")
        return bool(self.failure) and (not is_refusal or self.best_seconds is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the row for the table and JSON."""
        return {**asdict(self), "ratio": self.ratio, "gap": self.gap}


@lru_cache(maxsize=4)
def prepared_step(name: str) -> Prepared:
    """Return the step, imported and prepared for the search."""
    step = find_step(name)
    module = after(import_training_step(step), "prepare")
    decomposed = module.clone()
    has_batch_norm = any(op.name == "aten._native_batch_norm_legit_functional" for op in module.walk())
    if has_batch_norm:
        after(decomposed, SUM_BATCH_NORMS)
    return Prepared(decomposed, module, has_batch_norm, _rows(module))


def _rows(module: ModuleOp) -> int:
    """Return the batch size, which is the first dim of the batch items."""
    (func,) = step_functions(module)
    attributes = func.arg_attrs or ()
    batch = [value.type for value, attrs in zip(func.args, attributes, strict=True) if BATCH in attrs.data]
    return max((item.get_shape()[0] for item in batch if isinstance(item, TensorType) and item.get_shape()), default=1)


@lru_cache(maxsize=4)
def _need(name: str) -> float:
    return need_of(prepared_step(name))


def cluster_for(step: str, cluster: str) -> Cluster:
    """Return the cluster of a pair."""
    return find_any_cluster(cluster, lambda: _need(step))


def compare(step: str, cluster: str, options: Options = Options()) -> Row:
    """Plan a pair by the search and by hand. Exceptions become a failure in the row."""
    row = Row(step, cluster)
    try:
        number = number_of(step)
        row.what = random_step(number)[0] if number is not None else ""
        prepared, devices = prepared_step(step), cluster_for(step, cluster)
        row.devices = devices.mesh.device_count
        _search(row, prepared, devices, options.plan)
        _by_hand(row, prepared, devices, options)
    except Exception:
        row.failure = f"benchmark: {traceback.format_exc(limit=-3)}"
    return row


def _search(row: Row, prepared: Prepared, cluster: Cluster, plan: str) -> None:
    began = perf_counter()
    try:
        module = planned(prepared.fused, cluster, plan)
        row.planning = perf_counter() - began
        seconds, (peak, memory) = step_seconds(module), tightest(module)
        (func,) = step_functions(module)
        summary = read_plan(func)
        row.chosen, row.seconds = (summary.chosen if summary is not None else plan), seconds
        row.candidates = len(summary.candidates) if summary is not None else 0
        row.bound = summary.bound if summary is not None else None
        if summary is not None and abs(summary.step / seconds - 1.0) > TOLERANCE:
            row.failure = f"says {summary.step:.6g} s, is {seconds:.6g} s"
        if peak > memory:
            row.failure = f"needs {peak} bytes of {memory:.0f}"
        if fault := first_fault(after(module, "finish")):
            row.failure = f"invalid: {fault.message}"
    except PassError as error:
        kind = "crashed" if "crashed" in str(error) else "refused"
        row.failure = f"{kind}: {error}"
        row.planning = perf_counter() - began


def _by_hand(row: Row, prepared: Prepared, cluster: Cluster, options: Options) -> None:
    plans = limited([plan for plan in plain_plans(prepared, cluster) if options.selects(plan.name)], options.most)
    judged = judge_all(Workshop(prepared, cluster), plans, options.seconds)
    if options.decisions:
        judged += [_searched(prepared, cluster, passes) for passes in DECISIONS if options.selects(passes)]
    fitting = sorted((trial for trial in judged if trial.counts), key=_step_of)
    row.refusals = tuple(dict.fromkeys((trial.family, trial.refusal) for trial in judged if trial.step is None))
    row.fitting, row.refused = len(fitting), sum(trial.step is None for trial in judged)
    if fitting:
        row.best, row.best_seconds = fitting[0].name, fitting[0].step
    if row.seconds is not None:
        limit = row.seconds / (1.0 + TOLERANCE)
        row.losses = tuple((trial.name, _step_of(trial)) for trial in fitting if _step_of(trial) < limit)


def _searched(prepared: Prepared, cluster: Cluster, passes: str) -> Judged:
    """Return the result of a search with a decision of the user."""
    try:
        module = planned(prepared.fused, cluster, passes)
    except PassError as error:
        return Judged("one decision", passes, refusal=str(error))
    return Judged("one decision", passes, step_seconds(module), *tightest(module))


def _step_of(judged: Judged) -> float:
    assert judged.step is not None
    return judged.step


def command(row: Row, baseline: str = "") -> str:
    """Return the command that repeats one row."""
    only = f" --only '{baseline}'" if baseline else ""
    only += " --decisions" if baseline in DECISIONS else ""
    return f"python benchmarks/plan_quality.py --pairs {row.step}@{row.cluster}{only}"


def faults(row: Row, most: int = 3) -> Iterator[str]:
    """Yield a line for a failure, and a line for each of up to `most` plans by hand that are faster."""
    where = f"{row.step} ({row.what})" if row.what else row.step
    if row.is_failure:
        best = f"; by hand {row.best} {row.best_seconds:.6g} s" if row.best_seconds is not None else ""
        failure = " ".join(row.failure.split())
        yield f"FAILED {where}, {row.cluster}: {failure}{best}: {command(row)}"
    for name, seconds in row.losses[:most]:
        assert row.seconds is not None
        yield (
            f"SLOWER {where}, {row.cluster} ({row.devices}): chosen {row.chosen} {row.seconds:.6g} s; {name}"
            f" {seconds:.6g} s ({row.seconds / seconds:.4f}x; {len(row.losses)} are faster): {command(row, name)}"
        )


def compare_all(pairs: Sequence[tuple[str, str]], options: Options, jobs: int) -> Iterator[Row]:
    """Yield the row of each pair when it is done. A pair that kills its process becomes a failure."""
    if jobs == 1:
        yield from (compare(*pair, options) for pair in pairs)
        return
    broken: list[tuple[str, str]] = []
    with _pool(jobs) as pool:
        futures: dict[Future[Row], tuple[str, str]] = {pool.submit(compare, *pair, options): pair for pair in pairs}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                broken.append(futures[future])
    for pair in broken:
        with _pool(1) as pool:
            try:
                yield pool.submit(compare, *pair, options).result()
            except BrokenProcessPool:
                yield Row(*pair, failure="crashed: its process was killed")


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the number of losing pairs, the worst and the median ratio, and the median gap to the bound."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    gaps = [row.gap for row in rows if row.gap is not None]
    return {
        "pairs": len(rows),
        "compared": len(ratios),
        "slower than a plan by hand": sum(bool(row.losses) for row in rows),
        "failures": sum(row.is_failure for row in rows),
        "worst ratio": max(ratios, default=None),
        "median ratio": statistics.median(ratios) if ratios else None,
        "median gap to the bound": statistics.median(gaps) if gaps else None,
    }


def plot_ratios_of(rows: Sequence[Row]) -> None:
    """Plot the sorted ratios to `results/plan_quality.png`."""
    ratios = sorted(row.ratio for row in rows if row.ratio is not None)
    with plot("plan_quality", title="Searched plans and plans by hand, simulated") as axes:
        axes.plot(range(1, len(ratios) + 1), ratios, ".")
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set(yscale="log", xlabel="pairs of a step and a cluster")
        axes.set_ylabel("step time, searched / best by hand")


def chosen_pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the pairs that the command line asks for. Pairs of the same step are adjacent."""
    if options.unequal:
        return PAIRS
    if options.pairs:
        return [(step, cluster) for step, _, cluster in (pair.rpartition("@") for pair in options.pairs)]
    if options.random:
        names = (f"{PREFIX}{number}" for number in range(options.seed, options.seed + options.random))
        return [(name, name) for name in names]
    clusters = options.clusters or list(shipped_clusters())
    steps = options.steps or [name for name in MODELS if not name.endswith("-tiny")]
    pairs = [(step, cluster) for step in steps for cluster in clusters]
    return sorted(random.Random(options.seed).sample(pairs, options.sample)) if options.sample else pairs


def _parser() -> argparse.ArgumentParser:
    parser = arguments(__doc__)
    parser.add_argument("--steps", nargs="+", metavar="STEP", help="steps (default: all of full size)")
    parser.add_argument("--clusters", nargs="+", metavar="CLUSTER", help="clusters (default: all shipped ones)")
    parser.add_argument("--pairs", nargs="+", metavar="STEP@CLUSTER", help="only these; either may be random-NUMBER")
    parser.add_argument("--sample", type=int, metavar="N", help="a random sample of N of these pairs")
    parser.add_argument("--random", type=int, metavar="N", help="N random clusters with a random step each")
    parser.add_argument("--unequal", action="store_true", help="clusters whose links or devices differ much")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample, or first number of --random")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--plan", default="search-plan", metavar="PIPELINE", help="the passes that search")
    parser.add_argument("--most", type=int, default=100_000, metavar="N", help="limit of plans by hand per pair")
    parser.add_argument("--seconds", type=float, help="time limit of plans by hand per pair")
    parser.add_argument("--only", metavar="TEXT", help="only plans by hand whose names contain TEXT")
    parser.add_argument("--decisions", action="store_true", help="also compare searches with one decision of the user")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="append losses and failures as they occur")
    parser.add_argument("--name", default="plan_quality", help="name of the JSON file")
    return parser


def main() -> None:
    """Print the table, and write JSON file and plot."""
    options = parsed(_parser(), pairs=["mlp-tiny@local-4"], most=20)
    logging.disable(logging.WARNING)
    rows: list[Row] = []
    pairs = chosen_pairs(options)
    compared = Options(options.plan, options.most, options.seconds, options.only, options.decisions)
    for row in compare_all(pairs, compared, options.jobs):
        rows.append(row)
        messages = list(faults(row))
        if options.faults is not None and messages:
            with options.faults.open("a") as file:
                file.writelines(f"{line}\n" for line in messages)
        print(f"[{len(rows)}/{len(pairs)}] {_line(row)}", *messages, sep="\n  ", flush=True)
    report(rows, options.name)


def _line(row: Row) -> str:
    ratio = f"{row.ratio:.4f}" if row.ratio is not None else "-"
    times = f"searched {row.planning:.0f} s, {row.fitting} fit, {row.refused} refused"
    ratio += f", gap {row.gap:.0%}" if row.gap is not None else ""
    return f"{row.step} {row.what} @ {row.cluster} ({row.devices}): {ratio} {row.chosen or row.failure[:120]} ({times})"


def report(rows: Sequence[Row], name: str) -> None:
    """Publish the table and the plot, and print the summary and the losses."""
    order: list[Mapping[str, Any]] = [row.as_dict() for row in sorted(rows, key=lambda row: -(row.ratio or 9e9))]
    hidden = ("losses", "failure", "refusals", "what", "planning", "candidates", "refused", "bound")
    publish(name, order, hidden=hidden)
    for key, value in summary_of(rows).items():
        print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")
    for line in (line for row in rows for line in faults(row)):
        print(line)
    plot_ratios_of(rows)


if __name__ == "__main__":
    main()
