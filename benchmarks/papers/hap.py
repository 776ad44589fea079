"""
Simulate the evaluation of HAP ("HAP: SPMD DNN Training on Heterogeneous GPU Clusters with Automated Program Synthesis",
Zhang et al., EuroSys 2024): its figures 2, 4 and 13 to 19.

    python benchmarks/papers/hap.py [--only SECTION ...]

Sections: `shares` (figure 2), `gathers` (4), `mixed` (13), `equal` (14), `overlap`, `ablation` (15), `concurrent` (16),
`experts` (17), `accuracy` (18), `depth` (19) and `turns`. Each prints a table and writes JSON and a plot. The models,
the clusters and the baselines are in `hap_plans.py`. "auto" is `search-plan`.

The paper shows its figures only as plots, so the tables compare our results with statements in its text.

`accuracy` compares the cost by which HAP decides, a sum over phases, with the simulated step; their GPUs cannot be
measured here. `turns` compares HAP's alternation between strategy and shares with `search-plan`, restricted to HAP's
space of plans, on 100 random clusters of unequal devices.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import hap_plans
from _plain_plans import Judged, Prepared, need_of, step_seconds
from _random_pairs import random_cluster
from _report import arguments, parsed, plot_curves, plot_grouped, plot_scatter, progress, publish
from hap_plans import (
    BERT,
    HOSTS,
    MODELS,
    TURNS,
    VIT,
    by_speed,
    fixed,
    flat,
    imported,
    machines,
    moe,
    prepared,
    two_kinds,
)
from xdsl.context import Context

from shardwright.ir.cluster_file import parse_cluster
from shardwright.ir.collective_cost import Method
from shardwright.ir.collective_cost import step_seconds as collective_seconds
from shardwright.ir.collectives import single_step
from shardwright.ir.mesh import Mesh
from shardwright.ir.overlap import ALL
from shardwright.ir.sharding import Sharding, parse_sharding
from shardwright.ir.submesh import on_mesh
from shardwright.models.bert import bert_step
from shardwright.models.mlp import mlp_step
from shardwright.models.vit import vit_step
from shardwright.passes.analysis.simulation.overlap_report import overlaps
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.shares.prediction import predicted_seconds

Rows = list[dict[str, Any]]

ASTAR = "search-strategy{algorithm=astar}"

HAPS_SPACE: Mapping[str, Any] = {"stages": 1, "micro_batches": 1, "duplex": "no", "idle": "no"}
"""Options of `search-plan` that leave it what HAP decides: a strategy and shares on all devices."""

TOLERANCE = 1e-6
"""Relative tolerance of equal steps."""

P100 = (2, 3, 4, 5)
"""The hosts of figure 14: four machines of P100."""

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


def shares(widths: Sequence[int]) -> Rows:
    """Return figure 2: two layers with split weights, with equal shares, shares by speed, and solved shares."""
    cluster, rows = two_kinds(Mesh.of(gpu=4)), Rows()
    for width in widths:
        config = replace(BERT, layers=2, width=width, heads=width // 64, vocabulary=1024)
        step = prepared(bert_step(config, batch=64, length=128))
        row: dict[str, Any] = {"width": width}
        for way, passes in {"EV": (), "CP": (by_speed(cluster),), "solved": ("balance-ratios",)}.items():
            row[f"{way} ms"] = _ms(hap_plans.judge(step, cluster, way, fixed("tp", axes=("gpu",)), *passes, "program"))
        rows.append(row)
    return rows


def gathers() -> Rows:
    """Return figure 4: bytes/s of both ways to gather 4 MB on four A100, by the share of the first device."""
    cluster, rows, size = hap_plans.four_a100(), Rows(), 2**20
    for percent in range(25, 96, 5):
        first = size * percent // 100
        offsets = [0, *(first + (size - first) * part // 3 for part in range(4))]
        parts = parse_sharding(f'[{{"gpu"}}], offsets={{0: {offsets}}}')
        step = single_step(parts, Sharding.replicated(1), cluster.mesh)
        assert step is not None
        rows.append({"first share %": percent})
        methods: tuple[Method, ...] = ("padded", "grouped_broadcast")
        for method in methods:
            rows[-1][f"{method} GB/s"] = 4e-9 * size / collective_seconds(cluster, step, method, 4.0 * size)
    return rows


def compared(model: str, gpus: int, hosts: tuple[int, ...], says: str) -> dict[str, Any]:
    """Return the steps of a model by all ways, with the statement in the paper's text."""
    plans = hap_plans.all_ways(model, gpus, hosts)
    baseline, name = _best(plans, [way for way in plans if way not in ("HAP", "auto")])
    row = {
        "model": model,
        "GPUs": gpus,
        **{f"{way} ms": _ms(plan) for way, plan in plans.items()},
        "best baseline": name,
    }
    row |= {f"speed-up of {way}": baseline / _best(plans, [way])[0] for way in ("HAP", "auto")}
    return progress(row | {"paper": says, "plan": plans["auto"].name})


def mixed(models: Sequence[str], gpus: Sequence[int]) -> Rows:
    """Return figure 13: all eight machines, with as many GPUs of each."""
    return [compared(model, count, tuple(range(HOSTS)), FIGURE_13[model]) for model in models for count in gpus]


def equal(models: Sequence[str], gpus: Sequence[int]) -> Rows:
    """Return figure 14: four machines of P100."""
    return [compared(model, count, P100, FIGURE_14[model]) for model in models for count in gpus if count <= 32]


def overlap(models: Sequence[str], gpus: int) -> Rows:
    """Return the steps of DP-CP and of HAP's plan with and without overlap, and the times of the busiest GPU."""
    in_a_row, rows = machines(gpus, range(HOSTS)), Rows()
    in_a_row = on_mesh(in_a_row, flat(in_a_row))
    ways = {"DP-CP": (fixed("dp", axes=("gpu",)), by_speed(in_a_row)), "HAP": (TURNS,)}
    for model, (way, passes), program in itertools.product(models, ways.items(), ("program", BLOCKING)):
        simulated = simulate_module(hap_plans.planned(imported(model, gpus), in_a_row, *passes, program))[0]
        busiest = overlaps(simulated, simulated.busiest(None).number)[ALL, ALL]
        row = {"model": model, "way": way, "overlapped": str(program != BLOCKING), "step ms": 1e3 * simulated.seconds}
        rows.append(row | {"compute ms": 1e3 * busiest.compute, "sent ms": 1e3 * busiest.communication})
    return rows


def ablation(models: Sequence[str], gpus: int) -> Rows:
    """Return figure 15: throughput relative to DP-EV as the parts of HAP are added one after the other."""
    rows = Rows()
    ways = {
        "DP-EV": (fixed("dp", axes=("gpu",)), PADDED),
        "+ Q": (ASTAR, PADDED),
        "+ B": (TURNS, PADDED),
        "+ C": (TURNS, "program"),
    }
    for model in models:
        cluster = machines(gpus)
        placed = on_mesh(cluster, flat(cluster))
        plans = {way: hap_plans.judge(imported(model, gpus), placed, way, *passes) for way, passes in ways.items()}
        plans["auto"] = hap_plans.all_ways(model, gpus)["auto"]
        steps = {way: plan.step for way, plan in plans.items() if plan.step is not None}
        rows.append({"model": model, "GPUs": gpus, **{way: steps["DP-EV"] / step for way, step in steps.items()}})
        rows[-1]["DP-EV fits"] = str(plans["DP-EV"].counts)
    return rows


def concurrent(models: Sequence[str]) -> Rows:
    """Return figure 16: throughput of all 64 GPUs, relative to two models trained at once on equal GPUs."""
    rows, parts = Rows(), ((64, tuple(range(HOSTS))), (16, (0, 1)), (48, tuple(range(2, HOSTS))))
    for model in models:
        whole, v100, p100 = (hap_plans.all_ways(model, *part) for part in parts)
        row: dict[str, Any] = {"model": model}
        for way in ("HAP", "auto"):
            alone, fast, slow = (_best(plans, [way])[0] for plans in (whole, v100, p100))
            row[f"{way} over concurrent"] = 64 / alone / (16 / fast + 48 / slow)
        rows.append(progress({**row, "paper": "0.64 to 0.96"}))
    return rows


def experts(counts: Sequence[int]) -> Rows:
    """Return figure 17: half of BERT-MoE's layers, with 16 sequences per expert, on two A100 and two P100."""
    rows = Rows()
    for count in counts:
        cluster = two_kinds()
        padded = -(-count // 4) * 4
        # The room of an expert stays the same; padding adds experts that compute empty rooms.
        even = prepared(moe(padded, 16 * count, 4, 1.25 * padded / count))
        step = prepared(moe(count, 16 * count, 4)) if padded != count else even
        deepspeed = hap_plans.baselines(even, cluster, has_experts=True)["DeepSpeed"]
        haps, auto = hap_plans.haps(step, cluster), hap_plans.auto(step, cluster)
        row = {"experts": count, "padded to": padded, "DeepSpeed ms": _ms(deepspeed), "HAP ms": _ms(haps)}
        rows.append(progress({**row, "auto ms": _ms(auto), "plan": auto.name}))
    return rows


def accuracy(layers: Sequence[int]) -> Rows:
    """Return figure 18: HAP's cost and the simulated step of variants of BERT-Base on 8 GPUs."""
    cluster, rows = machines(8), Rows()
    for count, width, length in itertools.product(layers, (384, 768, 1152), (64, 128)):
        config = replace(BERT, layers=count, width=width)
        module = hap_plans.planned(prepared(bert_step(config, batch=512, length=length)), cluster, TURNS)
        cost = predicted_seconds(module)
        run_pipeline(Context(), module, "program", verify_each=False)
        row = {"layers": count, "width": width, "tokens": length, "HAP's cost ms": 1e3 * cost}
        rows.append(progress({**row, "simulated ms": 1e3 * step_seconds(module)}))
    costs, steps = ([row[column] for row in rows] for column in ("HAP's cost ms", "simulated ms"))
    print(f"Pearson's r: {statistics.correlation(costs, steps):.3f}")
    return rows


def depth(layers: Sequence[int]) -> Rows:
    """Return figure 19: seconds of the search by the number of layers of ViT, on 8 GPUs."""
    rows = Rows()
    searches = {"A* s": ASTAR, "eliminate s": "search-strategy"}
    for count in layers:
        step = prepared(vit_step(replace(VIT, layers=count), batch=512))
        row: dict[str, Any] = {"layers": count}
        for name, passes in searches.items():
            began = perf_counter()
            hap_plans.planned(step, machines(8), passes)
            row[name] = perf_counter() - began
        rows.append(progress(row))
    return rows


def turns(count: int) -> Rows:
    """Return the steps of an MLP on random clusters of 2 to 8 unequal devices, by HAP's turns and by our search."""
    step, rows = prepared(mlp_step((256, 1024, 1024, 10), batch=256)), Rows()
    need = need_of(Prepared(step, step, has_batch_norm=False, rows=256))
    for number in itertools.count():
        if len(rows) == count:
            break
        cluster = parse_cluster(random_cluster(number, need), f"random-{number}")
        if len(cluster.kinds_used) == 1 or cluster.mesh.device_count > MOST_DEVICES:
            continue
        in_a_row = on_mesh(cluster, flat(cluster))
        haps, ours = hap_plans.haps(step, cluster), hap_plans.auto(step, in_a_row, **HAPS_SPACE)
        row = {"cluster": number, "devices": cluster.mesh.device_count, "kinds": len(cluster.kinds_used)}
        ratio = haps.step / ours.step if haps.step and ours.step and haps.counts and ours.counts else ""
        rows.append(progress({**row, "HAP ms": _ms(haps), "search-plan ms": _ms(ours), "HAP over ours": ratio}))
    return rows


def plot_steps(name: str, rows: Rows) -> None:
    """Plot the speed-up over the best baseline."""
    labels = [f"{row['model']}, {row['GPUs']}" for row in rows]
    series = {f"{way} over the best baseline": [row[f"speed-up of {way}"] for row in rows] for way in ("HAP", "auto")}
    plot_grouped(name, labels, series, title=f"HAP, {name.removeprefix('hap_')}", ylabel="speed-up")


def plot_groups(name: str, rows: Rows) -> None:
    """Plot all columns with numbers, except the first column and counts, in groups by the first column."""
    first, *others = rows[0]
    columns = [column for column in others if isinstance(rows[0][column], float)]
    series = {column: [row[column] for row in rows] for column in columns}
    plot_grouped(name, [str(row[first]) for row in rows], series, title=f"HAP, {name.removeprefix('hap_')}", ylabel="")


def plot_lines(name: str, rows: Rows) -> None:
    """Plot the columns with a unit over the first column."""
    first, *others = rows[0]
    series = {
        column: [(row[first], row[column]) for row in rows if isinstance(row[column], float)]
        for column in others
        if column.endswith((" ms", " s", "GB/s"))
    }
    plot_curves(name, series, title=f"HAP, {name.removeprefix('hap_')}", xlabel=first, ylabel="ms, s or GB/s")


def plot_accuracy(name: str, rows: Rows) -> None:
    """Plot HAP's cost over the simulated step."""
    points = [(row["simulated ms"], row["HAP's cost ms"]) for row in rows]
    axes = {"xlabel": "simulated step, ms", "ylabel": "cost by HAP's model, ms"}
    plot_scatter(name, {"BERT-Base's variants": points}, title="HAP, figure 18", **axes)


def plot_turns(name: str, rows: Rows) -> None:
    """Plot the ratios in ascending order, and print how many are below, at and above 1."""
    ratios = sorted(row["HAP over ours"] for row in rows if row["HAP over ours"] != "")
    slower = [ratio for ratio in ratios if ratio < 1.0 - TOLERANCE]
    equal_ = [ratio for ratio in ratios if abs(ratio - 1.0) <= TOLERANCE]
    print(
        f"{len(ratios)} clusters: ours slower on {len(slower)}, equal on {len(equal_)}; least {ratios[0]:.4f}, ", end=""
    )
    print(f"median {statistics.median(ratios):.3f}, most {ratios[-1]:.3f}")
    plot_curves(
        name,
        {"HAP's alternation": list(enumerate(ratios))},
        title="100 random clusters",
        xlabel="cluster",
        ylabel="HAP over ours",
    )


def main() -> None:
    """Print the tables, and write JSON files and plots."""
    sections: dict[str, tuple[Callable[[argparse.Namespace], Rows], Callable[[str, Rows], None]]] = {
        "shares": (lambda options: shares(options.widths), plot_lines),
        "gathers": (lambda _: gathers(), plot_lines),
        "mixed": (lambda options: mixed(options.models, options.gpus), plot_steps),
        "equal": (lambda options: equal(options.models, options.gpus), plot_steps),
        "overlap": (lambda options: overlap(options.models, options.gpus[-1]), plot_groups),
        "ablation": (lambda options: ablation(options.models, options.gpus[-1]), plot_groups),
        "concurrent": (lambda options: concurrent(options.models), plot_groups),
        "experts": (lambda options: experts(options.experts), plot_lines),
        "accuracy": (lambda options: accuracy(options.layers[:2]), plot_accuracy),
        "depth": (lambda options: depth(options.layers), plot_lines),
        "turns": (lambda options: turns(options.clusters), plot_turns),
    }
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(sections), default=tuple(sections))
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, default=(8, 16, 32, 64), help="numbers of GPUs (%(default)s)")
    parser.add_argument(
        "--widths", nargs="+", type=int, default=(256, 1024, 2048, 3072, 4096, 6144), help="of figure 2"
    )
    parser.add_argument("--experts", nargs="+", type=int, default=(4, 5, 6, 7, 8, 9, 10, 12), help="of figure 17")
    parser.add_argument("--layers", nargs="+", type=int, default=(2, 4, 8, 12, 24), help="of figures 18 and 19")
    parser.add_argument("--clusters", type=int, default=100, help="number of random clusters of `turns`")
    quick = {"only": ["gathers", "shares", "turns", "depth"], "widths": [256], "layers": [2], "clusters": 1}
    options = parsed(parser, **quick)
    for name in options.only:
        make, plot = sections[name]
        rows = make(options)
        publish(f"hap_{name}", rows, hidden=("plan",))
        plot(f"hap_{name}", rows)


if __name__ == "__main__":
    main()
