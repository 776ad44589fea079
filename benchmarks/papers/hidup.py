"""
Simulate the evaluation of HiDup ("Accelerating Large-Scale Distributed Neural Network Training with SPMD Parallelism",
Zhang et al., SoCC 2022): its tables 2 to 5, and its figures 6 to 12.

    python benchmarks/papers/hidup.py [--only SECTION ...]

Sections: `interference` (table 2), `memory` (table 3), `table4`, `table5`; `scale` (figure 6), `single` (7),
`bandwidth` (8), `batch` (9), `loss` (10), `placement` (11 and 12); `ceiling`, the most that overlap can save by the
rate of the network; and `orders`. Each prints a table and writes JSON and most write a plot.

Models and experts are the paper's (6.1: batch and experts in proportion to GPUs). The paper gives no batch size; we
chose 32 samples per GPU. The mesh of the shipped clusters `hidup-*` is one axis of all GPUs, since HiDup splits a
tensor along one dim at a time. `hidup_plans.py` plans each step in several ways: as HiDup and as DeepSpeed run it;
`expert parallel`, which is DeepSpeed's plan with overlapped communication; `whole`, the fastest searched plan with an
unsplit batch; and `duplex`, the fastest searched plan with two interleaved parts, in the better order. Searches are the
searches of `search-plan` for one layout (`FIRST`).

`orders` has both orders of duplex and the chosen order, with simulated seconds and peak memory, for shipped models on
all four clusters, by the preset `tp` and as searched.

The paper shows its figures only as plots, so the tables compare our results with statements in its text. Table 4 of the
paper computes faster than the FLOP/s in its released code allow. The cluster files therefore have the FLOP/s with which
the step computes on a single machine for as long as in table 4; all other numbers are predictions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _plain_plans import step_seconds
from _report import arguments, parsed, plot_grouped, progress, publish
from hidup_figures import (
    MODELS,
    bandwidth,
    batch,
    ceiling,
    interference,
    memory,
    placement,
    plot_ceiling,
    plot_figure,
    plot_memory,
    plot_placement,
    scale,
    single,
)
from hidup_plans import HALVES, Planner, Setting
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Level
from shardwright.models.registry import training_step as shipped_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import cluster_of_module, step_views

CLUSTERS = ("hidup-2x4-10g", "hidup-2x4-30g", "hidup-2x4-100g", "hidup-8x8")

FAMILIES = ("attention", "contractions", "copy", "elementwise", "indexing", "losses", "normalisation", "reductions", "")
"""Families of ops whose times are wrong together in table 5; the last stands for all others."""

Rows = list[dict[str, Any]]

TABLE_4 = {
    "single machine": {"HiDup": (0.2972, 0.2948, 0.0297, 91.92), "DeepSpeed": (0.3988, 0.3531, 0.0282, 0.0)},
    "two, 100 Gbit/s": {"HiDup": (0.3985, 0.3088, 0.1523, 41.10), "DeepSpeed": (0.4993, 0.3479, 0.1347, 0.0)},
    "two, 30 Gbit/s": {"HiDup": (0.6657, 0.3021, 0.4432, 26.35), "DeepSpeed": (0.8251, 0.3469, 0.4585, 0.0)},
}
"""Wall, computation and communication in seconds, and overlap ratio in per cent, by network and system."""

TABLE_5 = {
    "random 20 %": 1.002,
    "random 50 %": 1.129,
    "communication +20 %": 1.000,
    "communication +50 %": 1.000,
    "communication -20 %": 1.000,
    "communication -50 %": 1.172,
}


def table4() -> Rows:
    """Return times and overlap ratios of BERT-SGMoE on one machine of four GPUs and on two."""
    networks = {"single machine": (4, "100g"), "two, 100 Gbit/s": (8, "100g"), "two, 30 Gbit/s": (8, "30g")}
    rows: Rows = []
    for network, (gpus, rate) in networks.items():
        planner = Planner(Setting("bert-sgmoe", gpus, f"hidup-2x4-{rate}"))
        ways = {
            "HiDup": planner.in_hidups_way(),
            "DeepSpeed": planner.in_deepspeeds_way(),
            "ours, expert parallel": planner.expert_parallel(),
            "ours, duplex": planner.duplex(),
            "ours, whole": planner.whole(),
        }
        for way, outcome in ways.items():
            wall, compute, sent, ratio = TABLE_4[network].get(way, (None,) * 4)
            rows.append(
                {
                    "network": network,
                    "plan": way,
                    "strategy": outcome.name,
                    "wall s": outcome.seconds,
                    "paper's": wall,
                    "compute s": outcome.overlap.compute,
                    "compute, paper": compute,
                    "sent s": outcome.overlap.communication,
                    "sent, paper": sent,
                    "overlap %": 100 * outcome.overlap.ratio,
                    "overlap, paper": ratio,
                }
            )
    return rows


def table5(draws: int) -> Rows:
    """Return how much slower the step gets if the plan is found with wrong times of ops and communication."""
    setting = Setting("bert-sgmoe", 8, "hidup-2x4-100g")
    best = Planner(setting).duplex()
    rows: Rows = []
    for name, paper in TABLE_5.items():
        kind, _, amount = name.removesuffix(" %").partition(" ")
        noise = int(amount) / 100
        ratios: list[float] = []
        for draw in range(draws if kind == "random" else 1):
            wrong = _mistaken(setting.on(), Random(draw), noise) if kind == "random" else _slower(setting.on(), noise)
            program = Planner(setting, wrong).duplex().module
            # The mesh of a program with two parts has one more axis.
            true = replace(cluster_of_module(program), devices=setting.on().devices, topology=setting.on().topology)
            add_cluster(program, true)
            ratios.append(step_seconds(program) / best.seconds)
        rows.append({"noise": name, "relative time": statistics.mean(ratios), "most": max(ratios), "paper": paper})
        progress(rows[-1] | {"draws": len(ratios)})
    return rows


def _slower(cluster: Cluster, noise: float) -> Cluster:
    """Return the cluster with communication that takes `1 + noise` times as long."""
    topology = cluster.topology
    assert topology is not None
    return replace(
        cluster, topology=replace(topology, levels=tuple(_times(each, 1 + noise) for each in topology.levels))
    )


def _times(level: Level, longer: float) -> Level:
    times = {"latency": level.latency * longer, "bandwidth": level.bandwidth / longer, "start": level.start * longer}
    return replace(level, **times)


def _mistaken(cluster: Cluster, random: Random, noise: float) -> Cluster:
    """Return the cluster with a random error, at most `noise`, in the times of each family of ops and of each wire."""

    def longer() -> float:
        return 1 + random.uniform(-noise, noise)

    topology = cluster.topology
    assert topology is not None
    levels = tuple(_times(level, longer()) for level in topology.levels)
    devices = tuple(
        replace(old, rates=tuple(_wrong_rate(family, old, longer()) for family in FAMILIES)) for old in cluster.devices
    )
    return replace(cluster, devices=devices, topology=replace(topology, levels=levels))


def _wrong_rate(family: str, device: Device, longer: float) -> OpRate:
    return OpRate(family, "", device.rate("float32") / longer, device.memory_bandwidth / longer, device.launch * longer)


def orders(models: Sequence[str], clusters: Sequence[str]) -> Rows:
    """Return the steps of shipped models with an unsplit batch, and with two parts in each order."""
    rows: Rows = []
    for name in models:
        step = import_training_step(shipped_step(name))
        run_pipeline(Context(), step, "prepare", verify_each=False)
        for site in clusters:
            for strategy in ("search-strategy{algorithm=fixed pins=tp}", "search-strategy"):
                rows.append({"step": name, "cluster": site, "strategy": strategy} | _by_order(step, site, strategy))
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _by_order(step: ModuleOp, name: str, strategy: str) -> dict[str, float]:
    """Return milliseconds and peak memory of one strategy in each order."""
    decided, cluster = step.clone(), find_cluster(name)
    add_cluster(decided, cluster)
    run_pipeline(Context(), decided, strategy, verify_each=False)
    halves, figures = decided.clone(), dict[str, float]()
    run_pipeline(Context(), halves, HALVES, verify_each=False)
    ways = {"whole": (decided, "program")}
    ways |= {order: (halves, f"duplex{{order={order}}},overlap,join-updates") for order in ("phases", "list", "best")}
    for way, (module, passes) in ways.items():
        program = module.clone()
        run_pipeline(Context(), program, passes, verify_each=False)
        ((view, on),) = step_views(program)
        figures[f"{way} ms"] = 1e3 * simulate_module(program)[0].seconds
        figures[f"{way} GiB"] = peak_memory(view.func, on.mesh, blocks=on.blocks).bytes / 2**30
    return figures


def plot_table4(name: str, rows: Rows) -> None:
    """Plot overlap ratios by network: the paper's, HiDup's way simulated, and ours."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    row_of = {(row["network"], row["plan"]): row for row in rows}
    series = {"HiDup, measured in the paper": [row_of[network, "HiDup"]["overlap, paper"] for network in networks]}
    for plan in ("HiDup", "ours, expert parallel", "ours, duplex", "ours, whole"):
        title = "HiDup's way, simulated" if plan == "HiDup" else plan
        series[title] = [row_of[network, plan]["overlap %"] for network in networks]
    plot_grouped(name, networks, series, title="Table 4 of HiDup: overlap", ylabel="overlapped communication, %")


def plot_table5(name: str, rows: Rows) -> None:
    """Plot relative times by noise, with the paper's numbers."""
    series = {"ours": [row["relative time"] for row in rows], "paper": [row["paper"] for row in rows]}
    title, ylabel = "Table 5 of HiDup: noise", "step time / that without noise"
    plot_grouped(name, [row["noise"] for row in rows], series, title=title, ylabel=ylabel)


def plot_orders(name: str, rows: Rows) -> None:
    """Plot steps in each order of duplex relative to steps with an unsplit batch."""
    labels = [
        f"{row['step']}, {'tp' if 'tp' in row['strategy'] else 'searched'}, {row['cluster'].removeprefix('hidup-')}"
        for row in rows
    ]
    ways = ("phases", "list", "best")
    series = {way: [row[f"{way} ms"] / row["whole ms"] for row in rows] for way in ways}
    plot_grouped(name, labels, series, title="Orders of duplex", ylabel="step time / that of the unsplit batch")


def main() -> None:
    """Print the tables, and write JSON files and plots."""
    sections: dict[str, tuple[Callable[[argparse.Namespace], Rows], Callable[[str, Rows], None] | None]] = {
        "table4": (lambda _: table4(), plot_table4),
        "table5": (lambda options: table5(options.draws), plot_table5),
        "single": (lambda options: single(options.models), plot_figure),
        "scale": (lambda options: scale(options.models, options.gpus), plot_figure),
        "bandwidth": (lambda _: bandwidth("bert-sgmoe"), plot_figure),
        "batch": (lambda options: batch("bert-sgmoe", options.sizes), plot_figure),
        "memory": (lambda options: memory(options.models), plot_memory),
        "interference": (lambda _: interference("bert-sgmoe"), None),
        "ceiling": (lambda options: ceiling(options.models, options.gpus[-1:], options.rates), plot_ceiling),
        "loss": (lambda options: import_module("hidup_loss").losses(options.steps, options.text), _plot_loss),
        "placement": (lambda _: placement("bert-sgmoe"), plot_placement),
        "orders": (lambda options: orders(options.shipped, options.clusters), plot_orders),
    }
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(sections), default=tuple(sections))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="models of figures 6 and 7")
    parser.add_argument("--gpus", nargs="+", type=int, default=(8, 16, 32, 64), help="GPUs of figure 6")
    parser.add_argument("--sizes", nargs="+", type=int, default=(4, 8, 16, 32, 64), help="samples per GPU of figure 9")
    parser.add_argument("--rates", nargs="+", type=float, default=(1, 2, 4, 8, 16), help="rates of `ceiling`")
    parser.add_argument("--steps", type=int, default=200, help="training steps of figure 10")
    parser.add_argument("--text", type=Path, help="text to learn in figure 10 (default: docs/)")
    parser.add_argument("--draws", type=int, default=10, help="random draws of table 5")
    parser.add_argument("--shipped", nargs="+", default=("bert-base", "gpt2-small", "vit-base", "bert-sgmoe", "vgg19"))
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=CLUSTERS, help="clusters of `orders`")
    options = parsed(parser, only=["memory"], models=["vit-switch"])
    for name in options.only:
        make, plot = sections[name]
        rows = make(options)
        hidden = [column for column, value in rows[0].items() if isinstance(value, list)]
        publish(f"hidup_{name}", rows, hidden=hidden)
        if plot is not None:
            plot(f"hidup_{name}", rows)


def _plot_loss(name: str, rows: Rows) -> None:
    import_module("hidup_loss").plot_losses(name, rows)


if __name__ == "__main__":
    main()
