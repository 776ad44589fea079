"""
Simulate the evaluation of HAP ("HAP: SPMD DNN Training on Heterogeneous GPU Clusters with Automated Program Synthesis",
Zhang et al., EuroSys 2024): its figures 2, 4 and 13 to 19.

    python benchmarks/papers/hap.py [--only SECTION ...]

Sections: `shares` (figure 2), `gathers` (4), `mixed` (13), `equal` (14), `overlap`, `ablation` (15), `concurrent` (16),
`experts` (17), `accuracy` (18), `depth` (19) and `turns`. The models, the clusters and the baselines are in
`hap_plans.py`. "auto" is `search-plan`. The paper shows its figures only as plots, so the tables compare our results
with statements in its text.

`accuracy` compares the cost by which HAP decides, a sum over phases, with the simulated step; their GPUs cannot be
measured here. `turns` compares HAP's alternation between strategy and shares with `search-plan`, restricted to HAP's
space of plans, on 100 random clusters of unequal devices.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import hap_plans
from _plain_plans import Judged, Prepared, need_of, step_seconds
from _random_pairs import random_cluster
from _report import (
    Rows,
    Section,
    arguments,
    columns_of,
    parsed,
    plot_curves,
    plot_grouped,
    plot_scatter,
    progress,
    publish_sections,
)
from _steps import after, planned, prepared

from shardwright.ir.cluster_file import parse_cluster
from shardwright.ir.collective_cost import Method
from shardwright.ir.collective_cost import step_seconds as collective_seconds
from shardwright.ir.collectives import single_step
from shardwright.ir.mesh import Mesh
from shardwright.ir.overlap import ALL
from shardwright.ir.sharding import Sharding, parse_sharding
from shardwright.models.bert import bert_step
from shardwright.models.mlp import mlp_step
from shardwright.models.vit import vit_step
from shardwright.passes.analysis.simulation.overlap_report import overlaps
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.shares.prediction import predicted_seconds

ASTAR = "search-strategy{algorithm=astar}"

HAPS_SPACE: Mapping[str, Any] = {"stages": 1, "micro_batches": 1, "duplex": "no", "idle": "no"}
"""Options of `search-plan` that leave it what HAP decides: a strategy and shares on all devices."""

TOLERANCE = 1e-6
"""Relative tolerance of equal steps."""

EVERY, P100 = tuple(range(hap_plans.HOSTS)), (2, 3, 4, 5)
"""All hosts, and the hosts of figure 14: four machines of P100."""

MOST_DEVICES = 8

PADDED = "sort-across-rows,insert-resharding,agree-on-choices,select-collectives{method=padded},overlap,join-updates"
"""The passes of `program`, with gathers and scatters of unequal parts always padded."""

BLOCKING = "communicate,overlap{gradients=false gathers=false activations=false},join-updates"
"""The passes of `program`, without overlap of communication and computation."""

FIGURE_13 = {"VGG19": "up to 2.41x", "ViT": "as DP-CP", "BERT-Base": "1.28x on 64", "BERT-MoE": "as DeepSpeed"}
FIGURE_14 = {"VGG19": "up to 3.17x", "ViT": "up to 1.19x", "BERT-Base": "up to 1.22x", "BERT-MoE": "up to 1.13x"}
"""Speed-up over the best baseline, by model."""


def _ms(plan: Judged) -> float | str:
    """Return the milliseconds of a step, or the reason why the plan does not count."""
    return 1e3 * plan.step if plan.step is not None and plan.counts else "no memory" if plan.step else "-"


def _best(plans: Mapping[str, Judged], names: Sequence[str]) -> tuple[float, str]:
    """Return the shortest step of the plans that fit in memory, with the name of its way."""
    return min((plan.step, name) for name in names if (plan := plans[name]).step is not None and plan.counts)


def shares(options: Namespace) -> Rows:
    """Return figure 2: two layers with split weights, with equal shares, shares by speed, and solved shares."""
    cluster, rows = hap_plans.two_kinds(Mesh.of(gpu=4)), Rows()
    for width in options.widths:
        config = replace(hap_plans.BERT, layers=2, width=width, heads=width // 64, vocabulary=1024)
        step = prepared(bert_step(config, batch=64, length=128))
        rows.append({"width": width})
        for way, passes in {"EV": (), "CP": (hap_plans.by_speed(cluster),), "solved": ("balance-ratios",)}.items():
            rows[-1][f"{way} ms"] = _ms(hap_plans.judge(step, cluster, way, hap_plans.fixed("tp"), *passes, "program"))
    return rows


def gathers(_: Namespace) -> Rows:
    """Return figure 4: bytes/s of both ways to gather 4 MB on four A100, by the share of the first device."""
    cluster, rows, size = hap_plans.four_a100(), Rows(), 2**20
    methods: tuple[Method, ...] = ("padded", "grouped_broadcast")
    for percent in range(25, 96, 5):
        first = size * percent // 100
        offsets = [0, *(first + (size - first) * part // 3 for part in range(4))]
        parts = parse_sharding(f'[{{"gpu"}}], offsets={{0: {offsets}}}')
        step = single_step(parts, Sharding.replicated(1), cluster.mesh)
        assert step is not None
        rates = {f"{m} GB/s": 4e-9 * size / collective_seconds(cluster, step, m, 4.0 * size) for m in methods}
        rows.append({"first share %": percent, **rates})
    return rows


def compared(options: Namespace, hosts: tuple[int, ...], says: Mapping[str, str]) -> Rows:
    """Return the steps of models by all ways, with the statements in the paper's text."""
    rows = Rows()
    for model, gpus in itertools.product(options.models, options.gpus):
        if gpus > hap_plans.HOSTS * len(hosts):
            continue
        plans = hap_plans.all_ways(model, gpus, hosts)
        baseline, name = _best(plans, [way for way in plans if way not in ("HAP", "auto")])
        row = {"model": model, "GPUs": gpus, **{f"{way} ms": _ms(plan) for way, plan in plans.items()}}
        row |= {"best baseline": name}
        row |= {f"speed-up of {way}": baseline / _best(plans, [way])[0] for way in ("HAP", "auto")}
        rows.append(progress(row | {"paper": says[model], "plan": plans["auto"].name}))
    return rows


def overlap(options: Namespace) -> Rows:
    """Return the steps of DP-CP and of HAP's plan with and without overlap, and the times of the busiest GPU."""
    gpus, rows = options.gpus[-1], Rows()
    cluster = hap_plans.in_a_row(hap_plans.machines(gpus))
    ways = {"DP-CP": (hap_plans.fixed("dp"), hap_plans.by_speed(cluster)), "HAP": (hap_plans.TURNS,)}
    for model, (way, passes), program in itertools.product(options.models, ways.items(), ("program", BLOCKING)):
        simulated = simulate_module(planned(hap_plans.imported(model, gpus), cluster, *passes, program))[0]
        busiest = overlaps(simulated, simulated.busiest(None).number)[ALL, ALL]
        row = {"model": model, "way": way, "overlapped": str(program != BLOCKING), "step ms": 1e3 * simulated.seconds}
        rows.append(row | {"compute ms": 1e3 * busiest.compute, "sent ms": 1e3 * busiest.communication})
    return rows


def ablation(options: Namespace) -> Rows:
    """Return figure 15: throughput relative to DP-EV as the parts of HAP are added one after the other."""
    gpus, rows = options.gpus[-1], Rows()
    ways = {
        "DP-EV": (hap_plans.fixed("dp"), PADDED),
        "+ Q": (ASTAR, PADDED),
        "+ B": (hap_plans.TURNS, PADDED),
        "+ C": (hap_plans.TURNS, "program"),
    }
    for model in options.models:
        cluster = hap_plans.in_a_row(hap_plans.machines(gpus))
        plans = {
            way: hap_plans.judge(hap_plans.imported(model, gpus), cluster, way, *passes) for way, passes in ways.items()
        }
        plans["auto"] = hap_plans.all_ways(model, gpus)["auto"]
        steps = {way: plan.step for way, plan in plans.items() if plan.step is not None}
        row = {"model": model, "GPUs": gpus, **{way: steps["DP-EV"] / step for way, step in steps.items()}}
        rows.append(row | {"DP-EV fits": str(plans["DP-EV"].counts)})
    return rows


def concurrent(options: Namespace) -> Rows:
    """Return figure 16: throughput of all 64 GPUs, relative to two models trained at once on equal GPUs."""
    rows, parts = Rows(), ((64, EVERY), (16, EVERY[:2]), (48, EVERY[2:]))
    for model in options.models:
        every, row = [hap_plans.all_ways(model, *part) for part in parts], {"model": model}
        for way in ("HAP", "auto"):
            alone, fast, slow = (_best(plans, [way])[0] for plans in every)
            row[f"{way} over concurrent"] = 64 / alone / (16 / fast + 48 / slow)
        rows.append(progress({**row, "paper": "0.64 to 0.96"}))
    return rows


def experts(options: Namespace) -> Rows:
    """Return figure 17: half of BERT-MoE's layers, with 16 sequences per expert, on two A100 and two P100."""
    cluster, rows = hap_plans.two_kinds(), Rows()
    for count in options.experts:
        padded = -(-count // 4) * 4
        # The room of an expert stays the same; padding adds experts that compute empty rooms.
        even = prepared(hap_plans.moe(padded, 16 * count, 4, 1.25 * padded / count))
        step = prepared(hap_plans.moe(count, 16 * count, 4)) if padded != count else even
        deepspeed = hap_plans.baselines(even, cluster, has_experts=True)["DeepSpeed"]
        row = {"experts": count, "padded to": padded, "DeepSpeed ms": _ms(deepspeed)}
        row |= {"HAP ms": _ms(hap_plans.haps(step, cluster)), "auto ms": _ms(ours := hap_plans.auto(step, cluster))}
        rows.append(progress({**row, "plan": ours.name}))
    return rows


def accuracy(options: Namespace) -> Rows:
    """Return figure 18: HAP's cost and the simulated step of variants of BERT-Base on 8 GPUs."""
    cluster, rows = hap_plans.machines(8), Rows()
    for count, width, length in itertools.product(options.layers[:2], (384, 768, 1152), (64, 128)):
        config = replace(hap_plans.BERT, layers=count, width=width)
        module = planned(prepared(bert_step(config, batch=512, length=length)), cluster, hap_plans.TURNS)
        row = {"layers": count, "width": width, "tokens": length, "HAP's cost ms": 1e3 * predicted_seconds(module)}
        rows.append(progress({**row, "simulated ms": 1e3 * step_seconds(after(module, "program"))}))
    r = statistics.correlation(*columns_of(rows, "HAP's cost ms", "simulated ms").values())
    print(f"Pearson's r: {r:.3f}")
    return rows


def depth(options: Namespace) -> Rows:
    """Return figure 19: seconds of the search by the number of layers of ViT, on 8 GPUs."""
    rows = Rows()
    for count in options.layers:
        step = prepared(vit_step(replace(hap_plans.VIT, layers=count), batch=512))
        row: dict[str, Any] = {"layers": count}
        for name, passes in {"A* s": ASTAR, "eliminate s": "search-strategy"}.items():
            began = perf_counter()
            planned(step, hap_plans.machines(8), passes)
            row[name] = perf_counter() - began
        rows.append(progress(row))
    return rows


def turns(options: Namespace) -> Rows:
    """Return the steps of an MLP on random clusters of 2 to 8 unequal devices, by HAP's turns and by our search."""
    step, rows = prepared(mlp_step((256, 1024, 1024, 10), batch=256)), Rows()
    need, numbers = need_of(Prepared(step, step, has_batch_norm=False, rows=256)), itertools.count()
    while len(rows) < options.clusters:
        cluster = parse_cluster(random_cluster(number := next(numbers), need), f"random-{number}")
        if len(cluster.kinds_used) == 1 or cluster.mesh.device_count > MOST_DEVICES:
            continue
        theirs, ours = hap_plans.haps(step, cluster), hap_plans.auto(step, hap_plans.in_a_row(cluster), **HAPS_SPACE)
        row = {"cluster": number, "devices": cluster.mesh.device_count, "kinds": len(cluster.kinds_used)}
        ratio = theirs.step / ours.step if theirs.step and ours.step and theirs.counts and ours.counts else ""
        rows.append(progress({**row, "HAP ms": _ms(theirs), "search-plan ms": _ms(ours), "HAP over ours": ratio}))
    return rows


def _title(name: str) -> str:
    return f"HAP, {name.removeprefix('hap_')}"


def plot_steps(name: str, rows: Rows) -> None:
    """Plot the speed-up over the best baseline."""
    labels = [f"{row['model']}, {row['GPUs']}" for row in rows]
    series = {f"{way} over the best baseline": [row[f"speed-up of {way}"] for row in rows] for way in ("HAP", "auto")}
    plot_grouped(name, labels, series, title=_title(name), ylabel="speed-up")


def plot_groups(name: str, rows: Rows) -> None:
    """Plot all columns with numbers, except the first column and counts, in groups by the first column."""
    first, *others = rows[0]
    series = columns_of(rows, *(column for column in others if isinstance(rows[0][column], float)))
    plot_grouped(name, [str(row[first]) for row in rows], series, title=_title(name), ylabel="")


def plot_lines(name: str, rows: Rows) -> None:
    """Plot the columns with a unit over the first column."""
    first, *others = rows[0]
    series = {
        column: [(row[first], row[column]) for row in rows if isinstance(row[column], float)]
        for column in others
        if column.endswith((" ms", " s", "GB/s"))
    }
    plot_curves(name, series, title=_title(name), xlabel=first, ylabel="ms, s or GB/s")


def plot_accuracy(name: str, rows: Rows) -> None:
    """Plot HAP's cost over the simulated step."""
    points = [(row["simulated ms"], row["HAP's cost ms"]) for row in rows]
    axes = {"xlabel": "simulated step, ms", "ylabel": "cost by HAP's model, ms"}
    plot_scatter(name, {"BERT-Base's variants": points}, title="HAP, figure 18", **axes)


def plot_turns(name: str, rows: Rows) -> None:
    """Plot the ratios in ascending order, and print how many are below, at and above 1."""
    ratios = sorted(row["HAP over ours"] for row in rows if row["HAP over ours"] != "")
    slower = sum(ratio < 1.0 - TOLERANCE for ratio in ratios)
    equal = sum(abs(ratio - 1.0) <= TOLERANCE for ratio in ratios)
    spread = f"least {ratios[0]:.4f}, median {statistics.median(ratios):.3f}, most {ratios[-1]:.3f}"
    print(f"{len(ratios)} clusters: ours slower on {slower}, equal on {equal}; {spread}")
    series, axes = {"HAP's alternation": list(enumerate(ratios))}, {"xlabel": "cluster", "ylabel": "HAP over ours"}
    plot_curves(name, series, title="100 random clusters", **axes)


SECTIONS: dict[str, Section] = {
    "shares": (shares, plot_lines),
    "gathers": (gathers, plot_lines),
    "mixed": (lambda options: compared(options, EVERY, FIGURE_13), plot_steps),
    "equal": (lambda options: compared(options, P100, FIGURE_14), plot_steps),
    "overlap": (overlap, plot_groups),
    "ablation": (ablation, plot_groups),
    "concurrent": (concurrent, plot_groups),
    "experts": (experts, plot_lines),
    "accuracy": (accuracy, plot_accuracy),
    "depth": (depth, plot_lines),
    "turns": (turns, plot_turns),
}


def main() -> None:
    parser = arguments(__doc__)
    widths = (256, 1024, 2048, 3072, 4096, 6144)
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=tuple(SECTIONS))
    parser.add_argument("--models", nargs="+", choices=tuple(hap_plans.MODELS), default=tuple(hap_plans.MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, default=(8, 16, 32, 64), help="numbers of GPUs (%(default)s)")
    parser.add_argument("--widths", nargs="+", type=int, default=widths, help="of figure 2")
    parser.add_argument("--experts", nargs="+", type=int, default=(4, 5, 6, 7, 8, 9, 10, 12), help="of figure 17")
    parser.add_argument("--layers", nargs="+", type=int, default=(2, 4, 8, 12, 24), help="of figures 18 and 19")
    parser.add_argument("--clusters", type=int, default=100, help="number of random clusters of `turns`")
    quick = {"only": ["gathers", "shares", "turns", "depth"], "widths": [256], "layers": [2], "clusters": 1}
    publish_sections("hap", SECTIONS, parsed(parser, **quick), hidden=("plan",))


if __name__ == "__main__":
    main()
