"""
Choose plans for the settings of AMP's tables 6 to 11, and compare them with the choices of AMP and Megatron.

    python benchmarks/papers/amp.py --data DIR [--outlines FILE] [--only SETTING ...] [--parts PART ...]
                                   [--budget SECONDS]

`DIR` has AMP's trials, its tables and its profile of layers. The clusters are the clusters of `amp_trials.py`. The
constants of a T4 and its wires are fitted to the runs of the homogeneous setting only. There are three parts:

- `measured` takes the run with the least simulated seconds among the runs that AMP measured, and reports its measured
  seconds. AMP runs the best five of its predictions, so the fastest of our first five is reported too.
- `space` searches the degrees, micro-batches and orders of hosts that AMP's runtime supports, with stages cut by this
  compiler. The fastest plan that fits is reported, with measured seconds if AMP ran the same degrees.
- `plan` runs `search-plan` with no options, and simulates Megatron's best by the same cost model.

An outline takes some seconds, and `--outlines` caches outlines in a file. The part `plan` takes minutes per setting.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _outline import outline_seconds
from _report import RESULTS, arguments, given_data, parsed, plot_grouped, publish
from amp_plans import Outlines, Setup, Testbed, Trial, Workload, read_trials
from amp_profile import v100
from amp_space import cut, degrees_of, peak_bytes, searched_plan
from amp_trials import Run, calibrated, heterogeneous, homogeneous, of_v100s

HEADLINES = {"het_cluster": 1.54, "het_model": 1.77}
"""AMP's speed-ups of its best run over Megatron's: in tables 8 and 9, and in tables 10 and 11."""

FEW = 5
"""Number of plans that AMP runs before it keeps the fastest."""

CLOSE = 1.05
"""Largest ratio of our choice's measured seconds to the least measured seconds."""

MEMORY = 16e9
"""Memory of a T4 and of a V100 in bytes."""

PARTS = ("measured", "space", "plan")


@dataclass(frozen=True, eq=False)
class Setting:
    """
    A model on a cluster, the subject of two of AMP's tables.

    Args:
        testbeds: testbeds by the order of their hosts; the first is AMP's.
        trials: all measured runs of the setting.
        failed: runs that ended without a time.
    """

    name: str
    testbeds: Mapping[str, Testbed]
    trials: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    outlines: Outlines

    @property
    def workload(self) -> Workload:
        """Return the model of the runs."""
        return self.trials[0].setup.workload

    @property
    def testbed(self) -> Testbed:
        """Return the hosts in AMP's order."""
        return next(iter(self.testbeds.values()))

    def best_of(self, method: str) -> Trial:
        """Return the fastest measured run of AMP or of Megatron."""
        return min((trial for trial in self.trials if trial.method == method), key=lambda trial: trial.seconds)

    def simulated(self, setup: Setup, testbed: Testbed | None = None) -> float:
        """Simulate a step as AMP's runtime would run it, on AMP's order of hosts or on another testbed."""
        return outline_seconds(self.outlines.of(setup), (testbed or self.testbed).cluster(setup.axes))

    @property
    def of_megatron(self) -> float:
        """Return the least simulated seconds of Megatron's candidates."""
        return min(self.simulated(trial.setup) for trial in self.trials if trial.method == "Megatron")


@dataclass(frozen=True)
class Candidate:
    """A plan of AMP's space with its simulated seconds."""

    setup: Setup
    hosts: str
    seconds: float


def settings_of(data: Path, constants: Mapping[str, float], outlines: Outlines) -> list[Setting]:
    """Return all three settings, for the given constants of a T4 and its wires."""
    tables, listed = read_trials(data / "amp_tables_6_11.csv"), data / "amp_trials_homogeneous.csv"
    runs, failed = read_trials(listed), read_trials(listed, failed=True)
    faster = v100(constants, data)
    mixed = heterogeneous(constants, faster)
    turned = Testbed(mixed.devices[::-1], mixed.networks[::-1])
    testbeds: dict[str, dict[str, Testbed]] = {
        "homogeneous": {"equal": homogeneous(constants)},
        "het_cluster": {"V100s first": mixed, "T4s first": turned},
        "het_model": {"equal": of_v100s(constants, faster)},
    }

    def of_setting(name: str, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        return tuple(trial for trial in trials if trial.setting == name)

    return [
        Setting(name, beds, of_setting(name, (*tables, *runs)), of_setting(name, failed), outlines)
        for name, beds in testbeds.items()
    ]


def constants_of(data: Path, outlines: Outlines) -> dict[str, float]:
    """Fit the constants to all runs of the homogeneous setting, or read the result of an earlier fit."""
    path = RESULTS / "amp_search_constants.json"
    if path.exists():
        return json.loads(path.read_text())
    trials = read_trials(data / "amp_trials_homogeneous.csv")
    constants = calibrated([Run(trial, outlines.of(trial.setup)) for trial in trials])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(constants, indent=2) + "\n")
    return constants


def name_of(setup: Setup) -> str:
    """Return the degrees of pipeline, data and tensor parallelism, and the micro-batch size, as in `4x4x1, 2`."""
    return f"{setup.pipe}x{setup.data}x{setup.tensor}, {setup.micro_batch}"


def measured_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield a row for each run of the tables, with simulated and measured seconds."""
    for trial in (trial for trial in setting.trials if trial.method):
        row = {"setting": setting.name, "method": trial.method, "plan": name_of(trial.setup)}
        yield {**row, "measured s": trial.seconds, "simulated s": setting.simulated(trial.setup)}


def choice_row(setting: Setting) -> dict[str, Any]:
    """Choose among the measured runs by simulation, and compare the choice with AMP's and Megatron's best runs."""
    seconds = {trial: setting.simulated(trial.setup) for trial in setting.trials}
    ours, *others = sorted(seconds, key=seconds.__getitem__)[:FEW]
    of_five = min((ours, *others), key=lambda trial: trial.seconds)
    best = min(trial.seconds for trial in setting.trials)
    amp, megatron = setting.best_of("AMP"), setting.best_of("Megatron")
    gain, headline = megatron.seconds / ours.seconds, HEADLINES.get(setting.name)
    return {
        "setting": setting.name,
        "runs": len(seconds),
        "AMP": name_of(amp.setup),
        "AMP s": amp.seconds,
        "Megatron": name_of(megatron.setup),
        "Megatron s": megatron.seconds,
        "ours": name_of(ours.setup),
        "simulated s": seconds[ours],
        "ours s": ours.seconds,
        "ours / best": ours.seconds / best,
        "Megatron / ours": gain,
        "of five": name_of(of_five.setup),
        "of five s": of_five.seconds,
        "Megatron / of five": megatron.seconds / of_five.seconds,
        "AMP's claim": headline or "",
        "close": ours.seconds <= CLOSE * best,
        "met": headline is None or round(gain, 2) >= headline,
        "met of five": headline is None or round(megatron.seconds / of_five.seconds, 2) >= headline,
    }


def candidates_of(setting: Setting) -> Iterator[Candidate]:
    """
    Yield AMP's space, with stages cut for each order of hosts.

    The degree of tensor parallelism grows until its fastest plan is slower than the fastest plan of the previous
    degree.
    """
    for hosts, testbed in setting.testbeds.items():
        before = inf
        for of_tensor in degrees_of(setting.workload):
            best = inf
            for sizes in of_tensor:
                for candidate in _by_size(setting, hosts, testbed, sizes):
                    best = min(best, candidate.seconds)
                    yield candidate
            if best > before:
                break
            before = best


def _by_size(setting: Setting, hosts: str, testbed: Testbed, sizes: Sequence[Setup]) -> Iterator[Candidate]:
    """Yield plans of equal degrees with growing micro-batches, until the step gets slower."""
    before = inf
    for degrees in sizes:
        setup = cut(degrees, testbed)
        try:
            candidate = Candidate(setup, hosts, setting.simulated(setup, testbed))
        except ValueError as error:
            # An outline needs equal ranks in a stage, but a dim of size 3 (colours) does not split evenly.
            print(f"{setting.name}, {hosts}: {name_of(setup)}: left out, {error}", file=sys.stderr)
            return
        print(f"{setting.name}, {hosts}: {name_of(setup)}: {candidate.seconds:.3f} s", file=sys.stderr)
        yield candidate
        if candidate.seconds > before:
            return
        before = candidate.seconds


def space_row(setting: Setting) -> dict[str, Any]:
    """Return a row with the fastest plan of AMP's space that fits in memory and did not fail in AMP's runs."""
    ordered = sorted(candidates_of(setting), key=lambda candidate: candidate.seconds)
    failed = {_degrees(trial.setup) for trial in setting.failed}
    runs = (_degrees(candidate.setup) not in failed and peak_bytes(candidate.setup) <= MEMORY for candidate in ordered)
    at = next(number for number, can_run in enumerate(runs) if can_run)
    ours, theirs = ordered[at], setting.of_megatron
    same = [trial for trial in setting.trials if _degrees(trial.setup) == _degrees(ours.setup)]
    return {
        "setting": setting.name,
        "candidates": len(ordered),
        "cannot run": ", ".join(name_of(candidate.setup) for candidate in ordered[:at]),
        "ours": name_of(ours.setup),
        "stages begin": " ".join(map(str, ours.setup.begins)),
        "hosts": ours.hosts,
        "GB": peak_bytes(ours.setup) / 1e9,
        "simulated s": ours.seconds,
        "same degrees, measured s": min((trial.seconds for trial in same), default=""),
        "best measured s": min(trial.seconds for trial in setting.trials),
        "Megatron simulated s": theirs,
        "Megatron / ours": theirs / ours.seconds,
    }


def _degrees(setup: Setup) -> tuple[int, int, int]:
    return setup.micro_batch, setup.tensor, setup.data


def plan_row(setting: Setting, budget: float | None) -> dict[str, Any]:
    """Run `search-plan` with no options, and compare the plan with Megatron's best by the same cost model."""
    began = perf_counter()
    plan = searched_plan(setting.workload, setting.testbed, budget)
    seconds, theirs = perf_counter() - began, setting.of_megatron
    (peak,) = {tried_plan.peak_bytes for tried_plan in plan.candidates if tried_plan.name == plan.chosen}
    return {
        "setting": setting.name,
        "plan": plan.chosen,
        "simulated s": plan.step,
        "bound s": plan.bound if plan.bound is not None else "",
        "GB": peak / 1e9 if peak is not None else "",
        "Megatron simulated s": theirs,
        "Megatron / plan": theirs / plan.step,
        "planning s": seconds,
    }


def main() -> None:
    """Print the tables, and write JSON files and a plot."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--outlines", type=Path)
    parser.add_argument("--only", nargs="+", choices=("homogeneous", *HEADLINES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--budget", type=float, help="time limit in seconds of each search for a plan")
    options = parsed(parser, parts=["measured"])
    data = given_data(options, "amp_trials_homogeneous.csv, amp_tables_6_11.csv and amp_layer_costs.json")
    outlines = Outlines(options.outlines)
    settings = settings_of(data, constants_of(data, outlines), outlines)
    settings = [setting for setting in settings if not options.only or setting.name in options.only]
    if "measured" in options.parts:
        publish("amp_search_runs", [row for setting in settings for row in measured_rows(setting)])
        rows = list(map(choice_row, settings))
        publish("amp_search", rows, hidden=("runs", "simulated s"))
        series = {name: [row[f"{name} s"] for row in rows] for name in ("Megatron", "AMP", "ours")}
        plot_grouped(
            "amp_search",
            [row["setting"] for row in rows],
            series,
            title="Chosen plans on AMP's clusters",
            ylabel="measured step, s",
        )
    if "space" in options.parts:
        hidden = ("cannot run", "best measured s", "Megatron simulated s")
        publish("amp_search_space", list(map(space_row, settings)), hidden=hidden)
    if "plan" in options.parts:
        publish("amp_search_plans", [plan_row(setting, options.budget) for setting in settings])


if __name__ == "__main__":
    main()
