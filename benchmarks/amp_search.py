"""
Choose plans for the settings of AMP's tables 6 to 11, and compare them with the choices of AMP and Megatron.

    python benchmarks/amp_search.py --data DIR [--outlines FILE] [--only SETTING ...] [--parts PART ...]
                                   [--budget SECONDS]

`DIR` has AMP's trials, its tables and its profile of layers. The clusters are those of `amp_trials.py`. Constants of a
T4 and its wires are fitted to the runs of the homogeneous setting, and no constant is fitted to a run of the others.
There are three parts:

- `measured` takes the run with the least simulated seconds among those that AMP measured, and reports its measured
  seconds. AMP runs the best five of its predictions, so the fastest of our first five is reported too.
- `space` searches the degrees, micro-batches and orders of hosts that AMP's runtime supports, with stages cut by us.
  The fastest plan that fits is reported, with measured seconds where AMP ran the same degrees.
- `plan` runs `search-plan` with no options, and simulates Megatron's best by the same cost model.

Outlines of plans take some seconds each, and `--outlines` keeps them. The part `plan` takes minutes for each setting.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from _amp import Setup, Testbed, Trial, Workload, as_run, outlines, read_trials
from _amp_profile import v100
from _amp_space import Degrees, cut, degrees_of, peak_bytes, searched_plan
from _outline import outline_seconds
from _report import RESULTS, given_data, parsed, plot_grouped, publish
from amp_trials import Run, calibrated, heterogeneous, homogeneous, of_v100s

HEADLINES = {"het_cluster": 1.54, "het_model": 1.77}
"""AMP's best run is faster than Megatron's by these factors: in tables 8 and 9, and in tables 10 and 11."""

FEW = 5
"""AMP runs so many plans before it keeps the fastest."""

CLOSE = 1.05
"""Our choice may take the least measured seconds times this."""

MEMORY = 16e9
"""A T4 and a V100 have so many bytes."""

PARTS = ("measured", "space", "plan")


@dataclass(frozen=True, eq=False)
class Setting:
    """
    A setting is the subject of two tables.

    Args:
        testbeds: by the order of hosts; the first is AMP's.
        trials: all runs of it that were measured.
        failed: the runs that ended without a time.
    """

    name: str
    testbeds: Mapping[str, Testbed]
    trials: tuple[Trial, ...]
    failed: tuple[Trial, ...]

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


@dataclass(frozen=True)
class Candidate:
    """A candidate is a plan of AMP's space with its simulated seconds."""

    setup: Setup
    hosts: str
    seconds: float


def settings_of(data: Path, constants: Mapping[str, float]) -> list[Setting]:
    """Return all three settings, by the constants of a T4 and its wires."""
    tables = read_trials(data / "amp_tables_6_11.csv")
    listed = data / "amp_trials_homogeneous.csv"
    others, failed = read_trials(listed), read_trials(listed, failed=True)
    faster = v100(constants, data)
    mixed = heterogeneous(constants, faster)
    turned = Testbed(mixed.devices[::-1], mixed.networks[::-1])
    testbeds: dict[str, dict[str, Testbed]] = {
        "homogeneous": {"equal": homogeneous(constants)},
        "het_cluster": {"V100s first": mixed, "T4s first": turned},
        "het_model": {"equal": of_v100s(constants, faster)},
    }
    return [
        Setting(
            name,
            beds,
            tuple(trial for trial in (*tables, *others) if trial.setting == name),
            tuple(trial for trial in failed if trial.setting == name),
        )
        for name, beds in testbeds.items()
    ]


def constants_of(data: Path, cache_file: Path | None) -> dict[str, float]:
    """Fit the constants to all runs of the homogeneous setting, or read them from an earlier run."""
    kept = RESULTS / "amp_search_constants.json"
    if kept.exists():
        return json.loads(kept.read_text())
    trials = read_trials(data / "amp_trials_homogeneous.csv")
    made = outlines([trial.setup for trial in trials], cache_file)
    found = calibrated([Run(trial, as_run(outline)) for trial, outline in zip(trials, made, strict=True)])
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found, indent=2) + "\n")
    return found


def simulated(setup: Setup, testbed: Testbed, cache_file: Path | None) -> float:
    """Simulate a step as AMP's runtime would run it."""
    (outline,) = outlines([setup], cache_file)
    return outline_seconds(as_run(outline), testbed.cluster(setup.axes))


def name_of(setup: Setup) -> str:
    """Name the degrees of pipeline, data and tensor parallelism, and the samples of a micro-batch: `4x4x1, 2`."""
    return f"{setup.pipe}x{setup.data}x{setup.tensor}, {setup.micro_batch}"


def measured_rows(setting: Setting, cache_file: Path | None) -> list[dict[str, Any]]:
    """List all runs of the tables with simulated and measured seconds."""
    listed = [trial for trial in setting.trials if trial.method]
    return [
        {
            "setting": setting.name,
            "method": trial.method,
            "plan": name_of(trial.setup),
            "measured s": trial.seconds,
            "simulated s": simulated(trial.setup, setting.testbed, cache_file),
        }
        for trial in listed
    ]


def choice_row(setting: Setting, cache_file: Path | None) -> dict[str, Any]:
    """Choose among the measured runs, and compare with the best of AMP and of Megatron."""
    seconds = {trial: simulated(trial.setup, setting.testbed, cache_file) for trial in setting.trials}
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


def candidates_of(setting: Setting, cache_file: Path | None) -> Iterator[Candidate]:
    """
    Yield AMP's space, with stages cut for each order of hosts.

    Degrees of tensor parallelism grow until the fastest plan gets slower.
    """
    for hosts, testbed in setting.testbeds.items():
        before = inf
        for of_tensor in degrees_of(setting.workload):
            best = inf
            for sizes in of_tensor:
                for found in _by_size(setting, hosts, testbed, sizes, cache_file):
                    best = min(best, found.seconds)
                    yield found
            if best > before:
                break
            before = best


def _by_size(
    setting: Setting, hosts: str, testbed: Testbed, sizes: Sequence[Degrees], cache_file: Path | None
) -> Iterator[Candidate]:
    """Yield plans of equal degrees whose micro-batches grow until the step gets longer."""
    before = inf
    for degrees in sizes:
        setup = cut(setting.workload, degrees, testbed)
        try:
            found = Candidate(setup, hosts, simulated(setup, testbed, cache_file))
        except ValueError as error:
            # An outline needs stages whose ranks all do the same: three colours of pixels have no halves.
            print(f"{setting.name}, {hosts}: {name_of(setup)}: left out, {error}", file=sys.stderr)
            return
        print(f"{setting.name}, {hosts}: {name_of(setup)}: {found.seconds:.3f} s", file=sys.stderr)
        yield found
        if found.seconds > before:
            return
        before = found.seconds


def space_row(setting: Setting, cache_file: Path | None) -> dict[str, Any]:
    """Find the fastest plan of AMP's space that fits in memory, and that did not fail when AMP ran it."""
    ordered = sorted(candidates_of(setting, cache_file), key=lambda each: each.seconds)
    failed = {_degrees(trial.setup) for trial in setting.failed}
    runs = (_degrees(each.setup) not in failed and peak_bytes(each.setup) <= MEMORY for each in ordered)
    at = next(number for number, can_run in enumerate(runs) if can_run)
    ours = ordered[at]
    alike = [trial for trial in setting.trials if _degrees(trial.setup) == _degrees(ours.setup)]
    theirs = megatron_seconds(setting, cache_file)
    return {
        "setting": setting.name,
        "candidates": len(ordered),
        "cannot run": ", ".join(name_of(each.setup) for each in ordered[:at]),
        "ours": name_of(ours.setup),
        "stages begin": " ".join(map(str, ours.setup.begins)),
        "hosts": ours.hosts,
        "GB": peak_bytes(ours.setup) / 1e9,
        "simulated s": ours.seconds,
        "same degrees, measured s": min((trial.seconds for trial in alike), default=""),
        "best measured s": min(trial.seconds for trial in setting.trials),
        "Megatron simulated s": theirs,
        "Megatron / ours": theirs / ours.seconds,
    }


def _degrees(setup: Setup) -> tuple[int, int, int]:
    return setup.micro_batch, setup.tensor, setup.data


def megatron_seconds(setting: Setting, cache_file: Path | None) -> float:
    """Return the least simulated seconds of Megatron's candidates."""
    theirs = [trial for trial in setting.trials if trial.method == "Megatron"]
    return min(simulated(trial.setup, setting.testbed, cache_file) for trial in theirs)


def plan_row(setting: Setting, cache_file: Path | None, budget: float | None) -> dict[str, Any]:
    """Plan with no options, and compare with Megatron's best by the same cost model."""
    began = perf_counter()
    found = searched_plan(setting.workload, setting.testbed, budget)
    took = perf_counter() - began
    (tried,) = {each.peak_bytes for each in found.candidates if each.name == found.chosen}
    theirs = megatron_seconds(setting, cache_file)
    return {
        "setting": setting.name,
        "plan": found.chosen,
        "simulated s": found.step,
        "bound s": found.bound if found.bound is not None else "",
        "GB": tried / 1e9 if tried is not None else "",
        "Megatron simulated s": theirs,
        "Megatron / plan": theirs / found.step,
        "planning s": took,
    }


def plot(rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the measured seconds of Megatron's best, AMP's best and our choice."""
    series = {name: [row[f"{name} s"] for row in rows] for name in ("Megatron", "AMP", "ours")}
    plot_grouped("amp_search", [row["setting"] for row in rows], series, ylabel="measured seconds of a step")


def main() -> None:
    """Print the tables, write JSON and a plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--outlines", type=Path)
    parser.add_argument("--only", nargs="+", choices=("homogeneous", *HEADLINES))
    parser.add_argument("--parts", nargs="+", choices=PARTS)
    parser.add_argument("--budget", type=float, help="seconds of each search for a plan")
    options = parsed(parser, parts=["measured"])
    data = given_data(options, "amp_trials_homogeneous.csv, amp_tables_6_11.csv and amp_layer_costs.json")
    kept = options.outlines
    found = settings_of(data, constants_of(data, kept))
    settings = [each for each in found if not options.only or each.name in options.only]
    show = partial(publish, command="python benchmarks/amp_search.py --data DIR")
    parts = options.parts or PARTS
    if "measured" in parts:
        show("amp_search_runs", [row for setting in settings for row in measured_rows(setting, kept)])
        choices = [choice_row(setting, kept) for setting in settings]
        show("amp_search", choices, hidden=("runs", "simulated s"))
        plot(choices)
    if "space" in parts:
        rows = [space_row(setting, kept) for setting in settings]
        show("amp_search_space", rows, hidden=("cannot run", "best measured s", "Megatron simulated s"))
    if "plan" in parts:
        show("amp_search_plans", [plan_row(setting, kept, options.budget) for setting in settings])


if __name__ == "__main__":
    main()
