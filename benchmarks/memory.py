"""
Compare predicted with measured peak memory: plans of six model families on two and on four gloo processes.

    python benchmarks/memory.py [--only "gpt2-large x2 dp" ...]

`check-memory` predicts the peak. The measurement counts the memory of every tensor that a rank holds during its third
step (`_memory_meter.py`). The table shows the rank with the largest predicted peak.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _memory_meter import peak_by_tensors
from _prediction_cases import FORMS, plan
from _prediction_steps import STEPS
from _report import Rows, arguments, parsed, plot, publish
from _sides import executor_of

from shardwright.api.compile import CompiledStep, PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.ir.submesh import on_mesh
from shardwright.lowering.capture.calling import batch_items
from shardwright.models.resnet import ResNetConfig, resnet_step
from shardwright.runtime import run_ranks

MIB = 2**20
_STEPS: dict[str, Callable[[], TrainingStep]] = {
    **STEPS,
    "resnet": lambda: resnet_step(ResNetConfig(blocks=(2, 2, 2), width=32, image=64, classes=100), batch=16),
}
_PIPELINE = (
    'prepare,recompute{{keep={keep}}},partition-stages{{stages={stages} ranks="{ranks}"}},search-strategy,'
    "program{{mode=pipeline parts=4 schedule={schedule}}},finish"
)


@dataclass(frozen=True)
class Case:
    """A plan of a step, in a form of `_prediction_cases` or as a pipeline, which keeps a share of activations."""

    step: str
    ranks: int
    form: str
    keep: float = 1.0

    @property
    def name(self) -> str:
        """Return the name of the plan, for instance `gpt2-large x4 dp` or `gpt2-large x2 dp, keeping 30%`."""
        kept = f", keeping {self.keep:.0%}" if self.keep < 1 else ""
        return f"{self.step} x{self.ranks} {self.form}{kept}"

    def compiled(self) -> CompiledStep:
        make = _STEPS[self.step]()
        if self.form in FORMS:
            cluster = on_mesh(find_cluster("local-4"), parse_mesh(FORMS[self.form].mesh or f"gpu={self.ranks}"))
            return plan(make, self.form, cluster, self.keep if self.keep < 1 else None)
        cluster = on_mesh(find_cluster("local-4"), parse_mesh(f"gpu={self.ranks}"))
        ranks = "1,1" if self.ranks == 2 else "1,1,2"
        passes = _PIPELINE.format(keep=self.keep, stages=ranks.count(",") + 1, ranks=ranks, schedule=self.form)
        return compile_step(make, cluster, PlanOptions(pipeline=passes), name="pipeline")


def _cases(step: str, ranks: int, *forms: str, keep: float = 1.0) -> Iterator[Case]:
    return (Case(step, ranks, form, keep) for form in forms)


CASES: tuple[Case, ...] = (
    *_cases("mlp-large", 2, "dp", "uneven", "micro"),
    *_cases("gpt2-large", 2, "dp", "zero3", "searched", "duplex", "micro", "1f1b", "gpipe"),
    *_cases("vit-large", 2, "dp", "tp", "micro"),
    *_cases("vgg-large", 2, "dp", "searched", "uneven"),
    *_cases("moe-large", 2, "dp", "zero3"),
    *_cases("resnet", 2, "dp", "zero3"),
    *_cases("mlp-large", 4, "zero3", "hybrid"),
    *_cases("gpt2-large", 4, "tp", "hybrid", "grid", "eager-1f1b"),
    *_cases("moe-large", 4, "searched", "dp"),
    *_cases("gpt2-large", 2, "dp", "zero3", "1f1b", keep=0.4),
    *_cases("gpt2-large", 2, "dp", "zero3", "1f1b", keep=0.0),
    *_cases("vit-large", 2, "dp", "tp", keep=0.0),
    *_cases("vgg-large", 2, "dp", keep=0.0),
)


def measure(programs: Sequence[tuple[str, str]]) -> list[tuple[int, str]]:
    """Run each program on this rank, and return its peak bytes and the operation that caused the peak."""
    torch.set_num_threads(1)
    peaks: list[tuple[int, str]] = []
    for name, text in programs:
        step = _STEPS[name]()
        executor, batch = executor_of(step, text), batch_items(step.batch)
        for _ in range(2):
            executor.step(batch)
        peaks.append(peak_by_tensors(executor, batch))
    return peaks


def rows(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield a row for each case. Cases with the same number of ranks share a launch."""
    for ranks in sorted({case.ranks for case in cases}):
        own_cases = [case for case in cases if case.ranks == ranks]
        plans = [case.compiled() for case in own_cases]
        programs = [(case.step, compiled.program) for case, compiled in zip(own_cases, plans, strict=True)]
        peaks = run_ranks(measure, ranks, programs, timeout=900)
        for index, (case, compiled) in enumerate(zip(own_cases, plans, strict=True)):
            predicted = compiled.report["peak_bytes"]
            rank = max(range(ranks), key=predicted.__getitem__)
            peak, op = peaks[rank][index]
            row = {"plan": case.name, "rank": rank, "predicted MiB": predicted[rank] / MIB, "measured MiB": peak / MIB}
            yield row | {"error %": 100 * (predicted[rank] - peak) / peak, "measured at": op}


def plot_peaks(table: Rows) -> None:
    """Plot predicted against measured peaks, with a band of 10 %, to `results/memory.png`."""
    measured, predicted = ([row[f"{side} MiB"] for row in table] for side in ("measured", "predicted"))
    ends = [min(measured) * 0.8, max(measured) * 1.2]
    with plot("memory", 5, 5, title="Peak memory of a rank") as axes:
        axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], alpha=0.2)
        axes.loglog(measured, predicted, "o", markersize=4)
        axes.set(xlabel="measured peak, MiB", ylabel="predicted peak, MiB")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", metavar="PLAN")
    options = parsed(parser, only=[CASES[0].name])
    table = list(rows([case for case in CASES if not options.only or case.name in options.only]))
    publish("memory", table)
    errors = [abs(row["error %"]) for row in table]
    within = sum(error <= 10 for error in errors)
    print(f"{within} of {len(table)} within 10 %; median {statistics.median(errors):.2g} %, most {max(errors):.2g} %")
    plot_peaks(table)


if __name__ == "__main__":
    main()
