"""
HiDup's figures 6 to 9, 11 and 12, and its tables 2 and 3 (`hidup.py`), for steps that are planned and simulated here.

Figures 6 to 9 compare the steps of systems. `over DeepSpeed` is DeepSpeed's time over HiDup's time - 1, both as
modelled in `hidup_plans.py`. `speed-up` is the time of `expert parallel`, which overlaps its communication too, over
the smaller of our `whole` and `duplex` times, - 1. FastMoE, the paper's best baseline in some settings, has its own
kernels and is not modelled.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from _plain_plans import step_seconds, tightest
from _report import Rows, Section, columns_of, plot_bars, plot_curves, plot_grouped, progress
from hidup_plans import ONE_MACHINE, Outcome, Planner, Setting

from shardwright.dialects.step import sharding_of
from shardwright.ir.cluster import Cluster, Interference
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.step.blocks import layer_of
from shardwright.passes.step.step_view import StepView, cluster_of_module, step_views

TABLE_2 = {
    "one machine, 256 MB": ("hidup-2x4-100g", 4, ONE_MACHINE.compute),
    "one machine, 256 KB": ("hidup-2x4-100g", 4, 1.035),
    "two machines, 256 MB": ("hidup-2x4-100g", 8, 1.019),
    "two machines, 256 KB": ("hidup-2x4-100g", 8, 1.02),
}
"""Cluster, GPUs, and how many times longer a product takes during an all-reduce, as measured in the paper."""

TABLE_3 = {
    "HiDup": (6.77, 6.34, 2.79, 2.60),
    "DDP": (9.87, 9.44, 4.92, 4.68),
    "DeepSpeed": (8.09, 7.80, 2.53, 2.52),
}
"""Peak memory in GB by system, in the order of `MODELS`."""

MODELS = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
STUDIED = MODELS[0]
"""The model of the sections that have one model."""

FIGURE_8 = {
    "hidup-2x4-10g": "up to 14 % over the best",
    "hidup-2x4-30g": "24 % over DeepSpeed, 14 % over the best (table 4)",
    "hidup-2x4-100g": "25 % over DeepSpeed and the best (table 4)",
}
"""Statements of the text and of table 4, by cluster."""


@cache
def by_way(setting: Setting) -> Mapping[str, Any]:
    """Plan a setting in all ways, and return the milliseconds of a step in each."""
    planner = Planner(setting)
    hidup, deepspeed = planner.in_hidups_way(), planner.in_deepspeeds_way()
    hand, whole, duplex = planner.expert_parallel(), planner.whole(), planner.duplex()
    row: dict[str, Any] = {"DeepSpeed's way ms": 1e3 * deepspeed.seconds, "HiDup's way ms": 1e3 * hidup.seconds}
    row |= {"over DeepSpeed": deepspeed.seconds / hidup.seconds - 1, "expert parallel ms": 1e3 * hand.seconds}
    row |= {"whole ms": 1e3 * whole.seconds, "duplex ms": 1e3 * duplex.seconds}
    row |= {"overlap of duplex": duplex.overlap.ratio}
    row |= {"faster": "duplex" if duplex.seconds < whole.seconds else "whole"}
    return progress({**row, "speed-up": hand.seconds / min(whole.seconds, duplex.seconds) - 1})


def compared(settings: Sequence[Setting], label: Callable[[Setting], str], says: Callable[[Setting], str]) -> Rows:
    """Return each setting in all ways, with the statement in the paper's text."""
    return [{"setting": label(setting), **by_way(setting), "paper": says(setting)} for setting in settings]


def scale(options: Namespace) -> Rows:
    """Return figure 6: up to 64 GPUs on 8 machines."""

    def says(setting: Setting) -> str:
        if setting.model.startswith("vit"):
            return "up to 61 % over the best"
        return "like the best" if setting.gpus <= 16 else "up to 18 % over the best"

    settings = [Setting(model, count, "hidup-8x8") for model in options.models for count in options.gpus]
    return compared(settings, lambda setting: f"{setting.model}, {setting.gpus} GPUs", says)


def single(options: Namespace) -> Rows:
    """Return figure 7: a single machine of 8 GPUs, with data parallelism as in PyTorch DDP and Horovod."""
    settings = [Setting(model, 8, "hidup-8x8") for model in options.models]
    rows = compared(settings, lambda setting: setting.model, lambda _: "as DDP and Horovod")
    for setting, row in zip(settings, rows, strict=True):
        ddp = 1e3 * Planner(setting).data_parallel().seconds
        row |= {"DDP ms": ddp, "HiDup over DDP": ddp / row["HiDup's way ms"] - 1}
    return rows


def bandwidth(_: Namespace) -> Rows:
    """Return figure 8: two machines of four GPUs at three rates."""
    settings = [Setting(STUDIED, 8, cluster) for cluster in FIGURE_8]
    return compared(settings, lambda setting: setting.cluster, lambda setting: FIGURE_8[setting.cluster])


def batch(options: Namespace) -> Rows:
    """Return figure 9: the number of samples per GPU, on two machines at 100 Gbit/s."""
    settings = [Setting(STUDIED, 8, "hidup-2x4-100g", size) for size in options.sizes]
    label, says = "{} a GPU".format, ("like the others", "faster")
    return compared(settings, lambda setting: label(setting.a_card), lambda setting: says[setting.a_card > 16])


def interference(_: Namespace) -> Rows:
    """Return how much the interference of table 2 slows the steps of our two fastest plans."""
    rows, outcomes = Rows(), dict[int, dict[str, Outcome]]()
    for name, (cluster, gpus, slower) in TABLE_2.items():
        if gpus not in outcomes:
            planner = Planner(Setting(STUDIED, gpus, cluster))
            outcomes[gpus] = {"whole": planner.whole(), "duplex": planner.duplex()}
        row: dict[str, Any] = {"measured": name, "products take": slower}
        for way, outcome in outcomes[gpus].items():
            alone, disturbed = (_disturbed(outcome, factor) for factor in (1.0, slower))
            row |= {f"{way} ms": 1e3 * alone, f"{way}, slower by": disturbed / alone - 1}
        rows.append(row)
    return rows


def _disturbed(outcome: Outcome, slower: float) -> float:
    """Return the seconds of a plan if communication slows ops by the factor `slower`."""
    module = outcome.module.clone()
    add_cluster(module, replace(cluster_of_module(module), interference=Interference(compute=slower)))
    return step_seconds(module)


def memory(options: Namespace) -> Rows:
    """Return table 3: the peak memory of a GPU, on one machine of four GPUs."""
    rows = Rows()
    for model in options.models:
        planner = Planner(Setting(model, 4, "hidup-2x4-100g"))
        ways = {
            "DDP": planner.data_parallel(),
            "DeepSpeed": planner.in_deepspeeds_way(),
            "HiDup": planner.in_hidups_way(),
            "ours, duplex": planner.duplex(),
            "ours, whole": planner.whole(),
        }
        for way, outcome in ways.items():
            paper = TABLE_3.get(way, (None,) * len(MODELS))[MODELS.index(model)]
            row = {"model": model, "plan": way, "GB": tightest(outcome.module)[0] / 1e9, "paper's GB": paper}
            rows.append(progress(row | {"step ms": 1e3 * outcome.seconds}))
    return rows


def plot_memory(name: str, rows: Rows) -> None:
    """Plot peak memory by model: the paper's systems, and the same plans here."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    series: dict[str, list[float]] = {}
    for way in dict.fromkeys(row["plan"] for row in rows):
        mine = columns_of([row for row in rows if row["plan"] == way], "GB", "paper's GB")
        series[way] = mine["GB"]
        if mine["paper's GB"][0] is not None:
            series[f"{way}, paper"] = mine["paper's GB"]
    plot_grouped(name, models, series, title="Table 3 of HiDup: peak memory of a GPU", ylabel="GB")


def ceiling(options: Namespace) -> Rows:
    """
    Return how much overlap can save at most, by the rate between machines as a multiple of the paper's 9.71 Gbit/s.

    If a step computes for C seconds and communicates for S, overlap saves at most the shorter of both. `ceiling` is
    (C + S) / max(C, S) - 1, the speed-up of a plan that hides all of it. `our duplex` has split experts, as DeepSpeed.
    """
    rows = Rows()
    for model, count, times in product(options.models, options.gpus[-1:], options.rates):
        setting = Setting(model, count, "hidup-8x8")
        topology = setting.on().topology
        assert topology is not None
        nics = {host.nic for host in topology.hosts}
        planner = Planner(setting, faster(setting.on(), lambda times=times: times, nics, latency=False))
        deepspeed, hidup, ours = planner.in_deepspeeds_way(), planner.in_hidups_way(), planner.expert_duplex()
        compute, sent = deepspeed.overlap.compute, deepspeed.overlap.communication
        row = {"model": model, "GPUs": count, "rate": times, "compute s": compute, "sent s": sent}
        row |= {"ceiling": (compute + sent) / max(compute, sent) - 1, "DeepSpeed's way s": deepspeed.seconds}
        row |= {"HiDup's way s": hidup.seconds, "HiDup over DeepSpeed": deepspeed.seconds / hidup.seconds - 1}
        row |= {"our duplex s": ours.seconds, "ours over DeepSpeed": deepspeed.seconds / ours.seconds - 1}
        rows.append(progress(row))
    return rows


def faster(
    cluster: Cluster, times: Callable[[], float], names: Collection[str] = (), *, latency: bool = True
) -> Cluster:
    """
    Return the cluster with faster wires.

    Args:
        times: factor of the next level's bandwidth.
        names: names of the levels; by default all.
        latency: whether latencies are shorter by the same factor.
    """
    topology = cluster.topology
    assert topology is not None
    levels = list(topology.levels)
    for at, level in enumerate(levels):
        if not names or level.name in names:
            factor = times()
            levels[at] = replace(level, bandwidth=level.bandwidth * factor)
            if latency:
                levels[at] = replace(levels[at], latency=level.latency / factor, start=level.start / factor)
    return replace(cluster, topology=replace(topology, levels=tuple(levels)))


def plot_ceiling(name: str, rows: Rows) -> None:
    """Plot the most that overlap can save, and the speed-up of HiDup's way, by the rate of the network."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row, column in product(rows, ("ceiling", "HiDup over DeepSpeed", "ours over DeepSpeed")):
        points = series.setdefault(f"{row['model']}, {row['GPUs']} GPUs: {column}", [])
        points.append((row["rate"], 100 * row[column]))
    xlabel, ylabel = "rate between machines / 9.71 Gbit/s", "speed-up, %"
    plot_curves(name, series, title="HiDup: the most that overlap can save", xlabel=xlabel, ylabel=ylabel)


def plot_figure(name: str, rows: Rows) -> None:
    """Plot the milliseconds of a step in each way."""
    series = {way.removesuffix(" ms"): [row[way] for row in rows] for way in rows[0] if way.endswith(" ms")}
    labels, title = [row["setting"] for row in rows], f"HiDup, {name.removeprefix('hidup_')}"
    plot_grouped(name, labels, series, title=title, ylabel="simulated step, ms")


def placement(_: Namespace) -> Rows:
    """Return figures 11 and 12 by rate: how many parameters are split, and the signatures of experts and gating."""
    rows = Rows()
    told = {"10g": "gating on every card", "30g": "", "100g": "experts apart, as GShard"}
    for rate, says in told.items():
        planner = Planner(Setting(STUDIED, 8, f"hidup-2x4-{rate}"))
        for way, outcome in (("duplex", planner.duplex()), ("pareto-dp", planner.pareto_dp())):
            view = step_views(outcome.module)[0][0]
            homes = [sharding_of(value.argument) for value in view.inputs if value.role == "train.param"]
            split = sum(bool(home.split_axes) for home in homes)
            row = {"rate": rate, "plan": way, "strategy": outcome.name, "step ms": 1e3 * outcome.seconds}
            row |= {"split": split, "whole": len(homes) - split, "experts": _products(view, ".mlp.experts")}
            rows.append(progress(row | {"gating": _products(view, ".router"), "figure 12": says}))
    return rows


def _products(view: StepView, part: str) -> str:
    """Return the most common signature of the products in a part of the model."""
    products = (op for op in view.ops if part in layer_of(op) and op.name in ("aten.bmm", "aten.mm"))
    return Counter(str(op.signature) for op in products).most_common(1)[0][0]


def plot_placement(name: str, rows: Rows) -> None:
    """Plot the numbers of split and of whole parameters, by rate."""
    labels, title = [f"{row['rate']}, {row['plan']}" for row in rows], "HiDup, figure 11: placement of parameters"
    plot_bars(name, labels, columns_of(rows, "whole", "split"), title=title, ylabel="tensors of parameters")


FIGURES: dict[str, Section] = {
    "single": (single, plot_figure),
    "scale": (scale, plot_figure),
    "bandwidth": (bandwidth, plot_figure),
    "batch": (batch, plot_figure),
    "memory": (memory, plot_memory),
    "interference": (interference, None),
    "ceiling": (ceiling, plot_ceiling),
    "placement": (placement, plot_placement),
}
"""The sections of this module."""
