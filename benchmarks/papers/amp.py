"""
Repeat the evaluation of AMP ("Automatically Finding Model Parallel Strategies with Heterogeneity Awareness", Li et al.,
NeurIPS 2022): the runs of its tables 6 to 11, as predictions and as searches.

    python benchmarks/papers/amp.py [--parts PART ...] [--settings SETTING ...] [--outlines FILE]

AMP compares itself with Megatron on three clusters of four hosts of four GPUs. There are four parts:

- `fit` fits eight constants of a T4 and its wires to a random half of 47 measured runs, and predicts the other half.
- `tables` predicts each run of the tables with the constants of all 47 runs (`CALIBRATED`, which `fit` prints), and
  chooses the run with the least simulated seconds, and the fastest of the first five, as AMP does.
- `space` searches the degrees, micro-batches and orders of hosts that AMP's runtime supports, with stages cut by this
  compiler, and has the fastest plan that fits.
- `plan` runs `search-plan`, and compiles the plans of the tables for the same runtime, with our overlap and fused
  attention. It takes minutes per setting.

An outline takes some seconds, and `--outlines` caches outlines in a file.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _figures_of_fit import mean_error, spearman
from _outline import Outline, outline_seconds
from _plain_plans import Workshop
from _report import Rows, arguments, parsed, plot_grouped, plot_scatter, progress, publish
from _steps import planned
from amp_plans import OVERLAPPED, Outlines, Setup, Trial, cut, degrees_of, peak_bytes, prepared, read_trials
from amp_testbed import EXPECTED, MEMORY, Testbed, calibrated, predicted, profile_rows, testbeds, v100

from shardwright.api.compile import PlanOptions
from shardwright.ir.mesh import Mesh
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.step.step_view import step_functions

HEADLINES = {"homogeneous": 1.32 / 1.20, "het_cluster": 1.54, "het_model": 1.77}
"""AMP's speed-ups of its best run over Megatron's, by setting: tables 6 and 7, 8 and 9, 10 and 11."""

FEW = 5
"""Number of plans that AMP runs before it keeps the fastest."""

CALIBRATED = {
    "flops": 2.462e13,
    "half size": 3.936e09,
    "attention": 9.696e11,
    "bandwidth": 2.476e11,
    "launch": 8.92e-06,
    "pcie": 3.322e09,
    "nic": 2.641e09,
    "latency": 2.697e-05,
}
"""Constants of a T4 and its wires that explain the 47 runs best, as `fit` prints them."""

PARTS = ("fit", "tables", "space", "plan")


@dataclass(frozen=True, eq=False)
class Setting:
    """
    A model on a cluster, the subject of two of AMP's tables.

    `testbeds` are by the order of their hosts; the first is AMP's. `failed` are the runs that ended without a time.
    """

    name: str
    testbeds: Mapping[str, Testbed]
    trials: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    outlines: Outlines

    @property
    def testbed(self) -> Testbed:
        """Return the hosts in AMP's order."""
        return next(iter(self.testbeds.values()))

    def of(self, method: str) -> list[Trial]:
        """Return the runs of AMP's or of Megatron's table."""
        return [trial for trial in self.trials if trial.method == method]

    def simulated(self, setup: Setup, testbed: Testbed | None = None) -> float:
        """Simulate a step as AMP's runtime would run it, on AMP's order of hosts or on another testbed."""
        return outline_seconds(self.outlines.of(setup), (testbed or self.testbed).cluster(setup.mesh))


@dataclass(frozen=True)
class Candidate:
    """A plan of AMP's space with its simulated seconds."""

    setup: Setup
    hosts: str
    seconds: float


def settings_of(names: Sequence[str], runs: int | None, outlines: Outlines) -> list[Setting]:
    """Return settings with at most `runs` runs of each table."""
    trials, beds = read_trials(), testbeds(CALIBRATED)
    settings: list[Setting] = []
    for name in names:
        mine = [trial for trial in trials if trial.setting == name]
        tables = [each for method in ("Megatron", "AMP") for each in [t for t in mine if t.method == method][:runs]]
        others = [trial for trial in mine if not trial.method] if runs is None else []
        ran = tuple(trial for trial in (*tables, *others) if not trial.failed)
        settings.append(Setting(name, beds[name], ran, tuple(t for t in others if t.failed), outlines))
    return settings


def fit(outlines: Outlines, splits: int, runs: int | None) -> None:
    """Print and plot how well halves of the runs on T4s, and AMP, predict the other halves."""
    trials = [trial for trial in read_trials() if not trial.method and not trial.failed][:runs]
    made = [(trial.setup, outlines.of(trial.setup)) for trial in trials]
    measured = [trial.seconds for trial in trials]
    whole = calibrated(made, measured)
    by_split = [_half(trials, made, seed) for seed in range(splits)]
    summary = Rows()
    for name in ("Spearman", "mean error", "chosen / best"):
        worst = min if name == "Spearman" else max
        for model in ("ours", "AMP"):
            values = [row[f"{name}, {model}"] for row in by_split]
            summary.append({"what": f"{name}, {model}", "median": statistics.median(values), "worst": worst(values)})
    publish("amp_fit", summary)
    constants = Rows()
    for each in EXPECTED:
        found = [row[each.name] for row in by_split]
        row = {"constant": each.name, "expected": each.expected, "all runs": whole[each.name]}
        constants.append(row | {"least": min(found), "most": max(found)})
    publish("amp_fit_constants", constants)
    points = {
        "AMP's prediction": [(trial.seconds, trial.theirs) for trial in trials],
        "ours": list(zip(measured, predicted(whole, made), strict=True)),
    }
    plot_scatter(
        "amp_fit", points, title="47 runs of GPT-2 on 16 T4s", xlabel="measured step, s", ylabel="predicted step, s"
    )


def _half(trials: Sequence[Trial], made: Sequence[tuple[Setup, Outline]], seed: int) -> dict[str, float]:
    """Return the figures of both predictions of an unseen half, and the constants fitted to the other half."""
    order = random.Random(seed).sample(range(len(trials)), len(trials))
    seen, unseen = order[: len(trials) // 2], order[len(trials) // 2 :]
    constants = calibrated([made[at] for at in seen], [trials[at].seconds for at in seen])
    measured = [trials[at].seconds for at in unseen]
    models = {"ours": predicted(constants, [made[at] for at in unseen]), "AMP": [trials[at].theirs for at in unseen]}
    figures = [f"{name}, {model}" for name in ("Spearman", "mean error", "chosen / best") for model in models]
    values = [
        *(spearman(each, measured) for each in models.values()),
        *(mean_error(each, measured) for each in models.values()),
        *(measured[min(range(len(each)), key=each.__getitem__)] / min(measured) for each in models.values()),
    ]
    return {**constants, **dict(zip(figures, values, strict=True))}


def run_rows(setting: Setting) -> Rows:
    """Return a row for each run of the tables, with simulated and measured seconds."""
    rows = Rows()
    for trial in (trial for trial in setting.trials if trial.method):
        # A turn is the time of one micro-batch in one stage of a pipeline of equal stages.
        seconds, turns = setting.simulated(trial.setup), trial.setup.parts + trial.setup.pipe - 1
        row = {"setting": setting.name, "method": trial.method, "plan": trial.setup.name, "measured s": trial.seconds}
        row |= {"simulated s": seconds, "error": seconds / trial.seconds - 1, "turns": turns}
        row |= {"measured ms of a turn": 1e3 * trial.seconds / turns, "simulated ms of a turn": 1e3 * seconds / turns}
        rows.append(row)
    return rows


def choice_row(setting: Setting) -> dict[str, Any]:
    """Choose among the measured runs by simulation, and compare the choice with AMP's and Megatron's best runs."""
    seconds = {trial: setting.simulated(trial.setup) for trial in setting.trials}
    first = sorted(seconds, key=seconds.__getitem__)[:FEW]
    chosen = {"ours": first[0], "of five": min(first, key=lambda trial: trial.seconds)}
    chosen |= {method: min(setting.of(method), key=lambda trial: trial.seconds) for method in ("Megatron", "AMP")}
    measured = [trial.seconds for trial in seconds]
    row: dict[str, Any] = {"setting": setting.name, "runs": len(seconds)}
    row["Spearman"] = spearman(list(seconds.values()), measured)
    row["mean error"] = mean_error(list(seconds.values()), measured)
    for who in ("Megatron", "AMP", "ours", "of five"):
        row |= {who: chosen[who].setup.name, f"{who} s": chosen[who].seconds}
    row["ours / best"] = chosen["ours"].seconds / min(measured)
    row["Megatron / ours"] = chosen["Megatron"].seconds / chosen["ours"].seconds
    row["Megatron / of five"] = chosen["Megatron"].seconds / chosen["of five"].seconds
    return row | {"AMP's claim": HEADLINES[setting.name]}


def candidates_of(setting: Setting) -> Iterator[Candidate]:
    """
    Yield AMP's space, with stages cut for each order of hosts.

    The degree of tensor parallelism grows until its fastest plan is slower than the plans of smaller degrees.
    """
    for hosts, testbed in setting.testbeds.items():
        before = inf
        for of_tensor in degrees_of(setting.trials[0].setup.workload):
            best = inf
            for sizes in of_tensor:
                # Micro-batches grow until the step gets slower.
                smaller = inf
                for degrees in sizes:
                    setup = cut(degrees, testbed.in_float32)
                    try:
                        seconds = setting.simulated(setup, testbed)
                    except ValueError as error:
                        # An outline needs equal ranks in a stage, but a dim of size 3 (colours) does not split evenly.
                        print(f"{setting.name}, {hosts}: {setup.name}: left out, {error}", file=sys.stderr)
                        break
                    progress({"setting": setting.name, "hosts": hosts, "plan": setup.name, "simulated s": seconds})
                    yield Candidate(setup, hosts, seconds)
                    best = min(best, seconds)
                    if seconds > smaller:
                        break
                    smaller = seconds
            if best > before:
                break
            before = best


def space_row(setting: Setting) -> dict[str, Any]:
    """Return a row with the fastest plan of AMP's space that fits in memory and did not fail in AMP's runs."""
    ordered = sorted(candidates_of(setting), key=lambda candidate: candidate.seconds)
    failed = {_degrees(trial.setup) for trial in setting.failed}
    runs = (_degrees(candidate.setup) not in failed and peak_bytes(candidate.setup) <= MEMORY for candidate in ordered)
    at = next(number for number, can_run in enumerate(runs) if can_run)
    ours, theirs = ordered[at], min(setting.simulated(trial.setup) for trial in setting.of("Megatron"))
    same = [trial for trial in setting.trials if _degrees(trial.setup) == _degrees(ours.setup)]
    row = {"setting": setting.name, "candidates": len(ordered)}
    row |= {"cannot run": ", ".join(candidate.setup.name for candidate in ordered[:at]), "ours": ours.setup.name}
    row |= {"stages begin": " ".join(map(str, ours.setup.begins)), "hosts": ours.hosts}
    row |= {"GB": peak_bytes(ours.setup) / 1e9, "simulated s": ours.seconds}
    row |= {"same degrees, measured s": min((trial.seconds for trial in same), default="")}
    return row | {"Megatron simulated s": theirs, "Megatron / ours": theirs / ours.seconds}


def _degrees(setup: Setup) -> tuple[int, int, int]:
    return setup.micro_batch, setup.tensor, setup.data


def plan_rows(setting: Setting, algorithms: Sequence[str], budget: float | None) -> Rows:
    """Return the tables' best plans and searched plans, all compiled for our runtime, on the float32 program."""
    step = prepared(setting.trials[0].setup.workload)
    rows = Rows()
    for method in ("Megatron", "AMP"):
        for trial in setting.of(method):
            shop = Workshop(step, setting.testbed.in_float32(trial.setup.mesh))
            judged = shop.judge(trial.setup.plain(OVERLAPPED))
            row = {"setting": setting.name, "method": method, "plan": judged.name, "simulated s": judged.step or inf}
            rows.append(progress({**row, "GB": judged.peak_bytes / 1e9, "planning s": "", "why none": judged.refusal}))
    for algorithm in algorithms:
        began, cluster = perf_counter(), setting.testbed.in_float32(Mesh.of(node=4, gpu=4))
        passes = PlanOptions(algorithm=algorithm, budget=budget).passes(cluster)  # pyright: ignore[reportArgumentType]
        (func,) = step_functions(planned(step.decomposed, cluster, *passes))
        plan = read_plan(func)
        assert plan is not None
        (peak,) = {tried.peak_bytes for tried in plan.candidates if tried.name == plan.chosen}
        row = {"setting": setting.name, "method": algorithm, "plan": plan.chosen, "simulated s": plan.step}
        row |= {"GB": peak / 1e9 if peak is not None else "", "planning s": perf_counter() - began}
        rows.append(progress({**row, "why none": ""}))
    fastest = {method: min(r["simulated s"] for r in rows if r["method"] == method) for method in ("Megatron", "AMP")}
    return [
        {**row, **{f"{method} / it": best / row["simulated s"] for method, best in fastest.items()}} for row in rows
    ]


def plot_choices(rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot the measured seconds of the best runs and of our choices."""
    titles = {"Megatron": "Megatron's best", "AMP": "AMP's best", "ours": "our choice", "of five": "best of our five"}
    series = {title: [row[f"{who} s"] for row in rows] for who, title in titles.items()}
    labels = [row["setting"] for row in rows]
    plot_grouped("amp", labels, series, title="AMP's tables 6 to 11: chosen runs", ylabel="measured step, s")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--settings", nargs="+", choices=tuple(HEADLINES), default=tuple(HEADLINES))
    parser.add_argument("--outlines", type=Path)
    parser.add_argument("--splits", type=int, default=10, help="random halves of `fit`")
    parser.add_argument("--runs", type=int, help="number of runs of each table (default: all)")
    parser.add_argument("--algorithms", nargs="+", choices=("auto", "anneal"), default=("anneal", "auto"))
    parser.add_argument("--budget", type=float, help="time limit in seconds of each search for a plan")
    options = parsed(parser, parts=["tables"], settings=["homogeneous"], runs=1)
    outlines = Outlines(options.outlines)
    if "fit" in options.parts:
        fit(outlines, options.splits, options.runs)
    settings = settings_of(options.settings, options.runs, outlines)
    if "tables" in options.parts:
        publish("amp_profile", profile_rows(v100(CALIBRATED)))
        publish("amp_runs", [row for setting in settings for row in run_rows(setting)])
        rows = list(map(choice_row, settings))
        publish("amp", rows, hidden=("runs",))
        plot_choices(rows)
    if "space" in options.parts:
        publish("amp_space", list(map(space_row, settings)), hidden=("cannot run", "Megatron simulated s"))
    if "plan" in options.parts:
        found = [plan_rows(setting, options.algorithms, options.budget) for setting in settings]
        publish("amp_plans", [row for rows in found for row in rows], hidden=("why none",))


if __name__ == "__main__":
    main()
