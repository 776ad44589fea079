"""
Predict AMP's measured runs by physical constants of its testbed that are fitted to other runs.

    python benchmarks/papers/amp_trials.py --data DIR [--splits 10] [--outlines FILE]

`DIR` has AMP's trials (`amp_trials_homogeneous.csv`: 47 runs of GPT-2 on 16 T4s) and the runs of its tables 6 to 11.
Each trial is compiled as a plan of this compiler: GPT-2 is imported, cut into the trial's stages, pinned to its degrees
of data and tensor parallelism, split into its micro-batches, and scheduled as 1F1B. Eight constants of a T4 and its
wires are fitted to the times of a random half and predict the other half. The tables also have AMP's own predictions of
the same runs. Runs on a cluster of V100s and T4s are then predicted without fitting: a V100 is the fitted T4 scaled by
the ratios of data sheets and corrected by AMP's profile of single layers (`amp_profile.py`), and a NIC has its nominal
bandwidth, or the rate that sockets reach on the T4s if that is less.

Planning takes some seconds per trial; `--outlines` caches its results in a file.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _figures_of_fit import mean_error, spearman
from _fit_constants import Constant, fit_constants
from _outline import Outline, outline_seconds
from _report import arguments, given_data, parsed, plot_scatter, publish
from amp_plans import Constants, Outlines, Testbed, Trial, read_trials
from amp_profile import v100

EXPECTED = (
    Constant("flops", 30e12, 2.0),
    Constant("half size", 2e9, 10.0),
    Constant("attention", 5e12, 4.0),
    Constant("bandwidth", 240e9, 1.5),
    Constant("launch", 10e-6, 3.0),
    Constant("pcie", 6e9, 2.5),
    Constant("nic", 5e9, 2.0),
    Constant("latency", 30e-6, 3.0),
)
"""
Expected constants with factors of uncertainty. A T4 gets less than the 65 TFLOP/s and 320 GB/s of its data sheet, since
they are never reached; the NIC of a G4dn.12xlarge gets its 50 Gbit/s. `half size` is the size in FLOPs of a matrix
product that runs at half its rate. `attention` is a low rate in FLOP/s, since AMP's attention wrote out its scores and
ours is fused.
"""

OF_WIRES = ("pcie", "nic", "latency")
OF_DEVICE = ("flops", "half size", "attention", "bandwidth", "launch")
NOMINAL = 50e9 / 8
"""Bandwidth in bytes/s that AMP assumes for all wires of the T4s."""


@dataclass(frozen=True, eq=False)
class Run:
    """A trial with its outline."""

    trial: Trial
    outline: Outline

    @lru_cache(maxsize=4096)
    def seconds(self, testbed: Testbed) -> float:
        """Return the seconds of a step. The cache serves splits that start from the same constants."""
        return outline_seconds(self.outline, testbed.cluster(self.trial.setup.axes))


def homogeneous(constants: Mapping[str, float]) -> Testbed:
    """Return four hosts of four T4s."""
    return Testbed((_part(constants, OF_DEVICE),) * 4, (_part(constants, OF_WIRES),) * 4)


def heterogeneous(constants: Mapping[str, float], of_v100: Mapping[str, float]) -> Testbed:
    """Return three hosts of four V100s and one of four T4s."""
    t4, wires = _part(constants, OF_DEVICE), _part(constants, OF_WIRES)
    v100, p3 = _part(of_v100, OF_DEVICE), _wires_of_p3(constants)
    return Testbed((v100, v100, v100, t4), (p3, p3, p3, wires))


def of_v100s(constants: Mapping[str, float], of_v100: Mapping[str, float]) -> Testbed:
    """Return four hosts of four V100s."""
    return Testbed((_part(of_v100, OF_DEVICE),) * 4, (_wires_of_p3(constants),) * 4)


def _wires_of_p3(constants: Mapping[str, float]) -> Constants:
    """
    Return the wires of a P3 host, with NICs of 10 Gbit/s.

    NVLink reaches the same share of its nominal bandwidth as PCIe. The NICs of the T4s reach more than 10 Gbit/s, so
    sockets can saturate the slower NIC.
    """
    nominal = {"pcie": constants["pcie"] / NOMINAL * 170e9 / 8, "nic": min(constants["nic"], 10e9 / 8)}
    return _part({**constants, **nominal}, OF_WIRES)


def _part(constants: Mapping[str, float], names: Sequence[str]) -> Constants:
    return tuple((name, constants[name]) for name in names)


def predicted(testbed: Testbed, runs: Sequence[Run]) -> list[float]:
    """Return the predicted step seconds of each run."""
    return [run.seconds(testbed) for run in runs]


def calibrated(runs: Sequence[Run]) -> dict[str, float]:
    """Return the constants that explain the times of `runs` best."""
    measured = [run.trial.seconds for run in runs]
    return dict(fit_constants(lambda constants: predicted(homogeneous(constants), runs), measured, EXPECTED).constants)


def figures(ours: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """Return correlation and error of predictions, and the time of the predicted best run relative to the best run."""
    best = measured[min(range(len(ours)), key=ours.__getitem__)]
    return {
        "Spearman": spearman(ours, measured),
        "mean error": mean_error(ours, measured),
        "chosen / best": best / min(measured),
    }


def halves(runs: Sequence[Run], splits: int) -> list[dict[str, Any]]:
    """Return for each split how well we and AMP predict the unseen half, and the fitted constants."""
    rows: list[dict[str, Any]] = []
    for seed in range(splits):
        order = random.Random(seed).sample(range(len(runs)), len(runs))
        seen, unseen = ([runs[i] for i in part] for part in (order[: len(runs) // 2], order[len(runs) // 2 :]))
        constants = calibrated(seen)
        measured = [run.trial.seconds for run in unseen]
        ours = figures(predicted(homogeneous(constants), unseen), measured)
        theirs = figures([run.trial.theirs for run in unseen], measured)
        rows.append({"split": seed, **ours, **{f"AMP {name}": value for name, value in theirs.items()}, **constants})
    return rows


def summary(by_split: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the median and the worst value over the splits of each figure, for our and AMP's predictions."""
    rows: list[dict[str, Any]] = []
    for name in ("Spearman", "mean error", "chosen / best"):
        worst = min if name == "Spearman" else max
        for model, column in (("ours", name), ("AMP", f"AMP {name}")):
            values = [row[column] for row in by_split]
            rows.append({"what": f"{name}, {model}", "median": statistics.median(values), "worst": worst(values)})
    return rows


def constants_table(by_split: Sequence[Mapping[str, Any]], whole: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return for each constant its expectation, its fit to all runs, and the extremes of its fits to halves."""
    return [
        {
            "constant": constant.name,
            "expected": constant.expected,
            "all runs": whole[constant.name],
            "least": min(row[constant.name] for row in by_split),
            "most": max(row[constant.name] for row in by_split),
        }
        for constant in EXPECTED
    ]


def rows_of(runs: Sequence[Run], seconds: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each run with its predictions."""
    return [
        {
            "setting": run.trial.setting,
            "micro-batch": run.trial.setup.micro_batch,
            "tensor": run.trial.setup.tensor,
            "data": run.trial.setup.data,
            "pipe": run.trial.setup.pipe,
            "measured s": run.trial.seconds,
            "ours s": ours,
            "AMP s": run.trial.theirs or "",
            "error": ours / run.trial.seconds - 1.0,
        }
        for run, ours in zip(runs, seconds, strict=True)
    ]


def main() -> None:
    """Print the tables, and write JSON files and a plot."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--outlines", type=Path)
    options = parsed(parser, splits=1)
    data = given_data(options, "amp_trials_homogeneous.csv and amp_tables_6_11.csv")
    outlines = Outlines(options.outlines)
    trials, listed = (read_trials(data / f"amp_{name}.csv") for name in ("trials_homogeneous", "tables_6_11"))
    runs = [Run(trial, outlines.of(trial.setup)) for trial in trials]
    other = [Run(trial, outlines.of(trial.setup)) for trial in listed if trial.setting == "het_cluster"]
    whole = calibrated(runs)
    by_split = halves(runs, options.splits)
    publish("amp_splits", by_split, hidden=[constant.name for constant in EXPECTED])
    publish("amp_constants", constants_table(by_split, whole))
    seconds = predicted(homogeneous(whole), runs)
    beyond = predicted(heterogeneous(whole, v100(whole, data)), other)
    publish("amp_trials", rows_of(runs, seconds) + rows_of(other, beyond))
    table = summary(by_split)
    for name, value in figures(beyond, [run.trial.seconds for run in other]).items():
        table.append({"what": f"{name}, ours, V100s and T4s", "median": value, "worst": value})
    publish("amp_summary", table)
    points = {"16 T4s, all fitted": (runs, seconds), "12 V100s and 4 T4s, nothing fitted": (other, beyond)}
    series = {k: [(r.trial.seconds, s) for r, s in zip(*pair, strict=True)] for k, pair in points.items()}
    plot_scatter("amp_trials", series, title="Steps of AMP", xlabel="measured step, s", ylabel="predicted step, s")


if __name__ == "__main__":
    main()
