"""
Simulate the evaluation of HiDup ("Accelerating Large-Scale Distributed Neural Network Training with SPMD Parallelism",
Zhang et al., SoCC 2022): its tables 2 to 5, and its figures 6 to 12.

    python benchmarks/papers/hidup.py [--only SECTION ...]

Sections: `interference` (table 2), `memory` (table 3), `table4`, `table5`; `scale` (figure 6), `single` (7),
`bandwidth` (8), `batch` (9), `loss` (10), `placement` (11 and 12); `ceiling`, the most that overlap can save by the
rate of the network; and `orders`, both orders of duplex for shipped models. Most have a plot.

Models and experts are the paper's (6.1: batch and experts in proportion to GPUs). The mesh of the shipped clusters
`hidup-*` is one axis of all GPUs, since HiDup splits a tensor along one dim at a time. `hidup_plans.py` plans each step
in several ways: as HiDup and as DeepSpeed run it; `expert parallel`, which is DeepSpeed's plan with overlapped
communication; `whole`, the fastest searched plan with an unsplit batch; and `duplex`, the fastest searched plan with
two interleaved parts, in the better order. Searches are the searches of `search-plan` for one layout (`FIRST`).

The paper shows its figures only as plots, so the tables compare our results with statements in its text. The FLOP/s
of the cluster files are fitted to the computation on a single machine in table 4; all other numbers are predictions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from _plain_plans import step_seconds
from _report import Rows, Section, arguments, columns_of, parsed, plot_grouped, progress, publish_sections
from _steps import after, planned, prepared
from hidup_figures import FIGURES, MODELS, faster
from hidup_plans import HALVES, Planner, Setting
from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.op_rate import OpRate
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.step.step_view import cluster_of_module, step_views

CLUSTERS = ("hidup-2x4-10g", "hidup-2x4-30g", "hidup-2x4-100g", "hidup-8x8")

FAMILIES = ("attention", "contractions", "copy", "elementwise", "indexing", "losses", "normalisation", "reductions", "")
"""Families of ops whose times are wrong together in table 5; the last stands for all others."""

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


def table4(_: argparse.Namespace) -> Rows:
    """Return times and overlap ratios of BERT-SGMoE on one machine of four GPUs and on two."""
    networks = {"single machine": (4, "100g"), "two, 100 Gbit/s": (8, "100g"), "two, 30 Gbit/s": (8, "30g")}
    rows = Rows()
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
            row = {"network": network, "plan": way, "strategy": outcome.name}
            row |= {"wall s": outcome.seconds, "paper's": wall}
            row |= {"compute s": outcome.overlap.compute, "compute, paper": compute}
            row |= {"sent s": outcome.overlap.communication, "sent, paper": sent}
            rows.append(row | {"overlap %": 100 * outcome.overlap.ratio, "overlap, paper": ratio})
    return rows


def table5(options: argparse.Namespace) -> Rows:
    """Return how much slower the step gets if the plan is found with wrong times of ops and communication."""
    setting = Setting("bert-sgmoe", 8, "hidup-2x4-100g")
    best, true, rows = Planner(setting).duplex(), setting.on(), Rows()
    for name, paper in TABLE_5.items():
        kind, _, amount = name.removesuffix(" %").partition(" ")
        noise = int(amount) / 100
        if kind == "random":
            wrong = [_mistaken(true, Random(draw), noise) for draw in range(options.draws)]
        else:
            wrong = [faster(true, lambda noise=noise: 1 / (1 + noise))]
        ratios: list[float] = []
        for cluster in wrong:
            program = Planner(setting, cluster).duplex().module
            # The mesh of a program with two parts has one more axis.
            on = replace(cluster_of_module(program), devices=true.devices, topology=true.topology)
            add_cluster(program, on)
            ratios.append(step_seconds(program) / best.seconds)
        rows.append({"noise": name, "relative time": statistics.mean(ratios), "most": max(ratios), "paper": paper})
        progress(rows[-1] | {"draws": len(ratios)})
    return rows


def _mistaken(cluster: Cluster, random: Random, noise: float) -> Cluster:
    """Return the cluster with a random error, at most `noise`, in the times of each family of ops and of each wire."""

    def wrong_rate(family: str, device: Device) -> OpRate:
        times = 1 + random.uniform(-noise, noise)
        return OpRate(
            family, "", device.rate("float32") / times, device.memory_bandwidth / times, device.launch * times
        )

    wrong = faster(cluster, lambda: 1 / (1 + random.uniform(-noise, noise)))
    devices = (replace(old, rates=tuple(wrong_rate(each, old) for each in FAMILIES)) for old in cluster.devices)
    return replace(wrong, devices=tuple(devices))


def orders(options: argparse.Namespace) -> Rows:
    """Return the steps of shipped models with an unsplit batch, and with two parts in each order."""
    rows = Rows()
    for name in options.shipped:
        step = prepared(training_step(name))
        for site, strategy in product(
            options.clusters, ("search-strategy{algorithm=fixed pins=tp}", "search-strategy")
        ):
            decided = planned(step, find_cluster(site), strategy)
            halves = after(decided.clone(), HALVES)
            row = {"step": name, "cluster": site, "strategy": strategy} | _figures("whole", decided, "program")
            for order in ("phases", "list", "best"):
                row |= _figures(order, halves, f"duplex{{order={order}}},overlap,join-updates")
            rows.append(progress(row))
    return rows


def _figures(way: str, decided: ModuleOp, passes: str) -> dict[str, float]:
    """Return milliseconds and peak memory of a decided step after the passes."""
    program = after(decided.clone(), passes)
    ((view, on),) = step_views(program)
    peak = peak_memory(view.func, on.mesh, blocks=on.blocks).bytes
    return {f"{way} ms": 1e3 * simulate_module(program)[0].seconds, f"{way} GiB": peak / 2**30}


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
    labels, series = [row["noise"] for row in rows], columns_of(rows, "relative time", "paper")
    plot_grouped(name, labels, series, title="Table 5 of HiDup: noise", ylabel="step time / that without noise")


def plot_orders(name: str, rows: Rows) -> None:
    """Plot steps in each order of duplex relative to steps with an unsplit batch."""
    labels = [
        f"{row['step']}, {'tp' if 'tp' in row['strategy'] else 'searched'}, {row['cluster'].removeprefix('hidup-')}"
        for row in rows
    ]
    series = {way: [row[f"{way} ms"] / row["whole ms"] for row in rows] for way in ("phases", "list", "best")}
    plot_grouped(name, labels, series, title="Orders of duplex", ylabel="step time / that of the unsplit batch")


def main() -> None:
    sections: dict[str, Section] = {
        "table4": (table4, plot_table4),
        "table5": (table5, plot_table5),
        **FIGURES,
        "loss": (lambda options: import_module("hidup_loss").losses(options.steps, options.text), _plot_loss),
        "orders": (orders, plot_orders),
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
    publish_sections("hidup", sections, parsed(parser, only=["memory"], models=["vit-switch"]))


def _plot_loss(name: str, rows: Rows) -> None:
    import_module("hidup_loss").plot_losses(name, rows)


if __name__ == "__main__":
    main()
