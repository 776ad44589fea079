"""
The evaluation of HiDup ("Accelerating Large-Scale Distributed Neural Network Training with SPMD Parallelism", Zhang et
al., SoCC 2022) by simulation: its tables 4 and 5, and what its figures 6 to 9, 11 and 12 show.

    python benchmarks/papers/hidup.py [--only orders table4 table5 scale single bandwidth batch placement]

Models, batch sizes and experts are the paper's (6.1: 32 samples a GPU, experts in proportion to GPUs), on the shipped
clusters `hidup-*`, whose mesh is one axis of all GPUs, for HiDup splits a tensor along one dim at a time. Each step is
planned three ways: `expert parallel`, what DeepSpeed and FastMoE do (each GPU has its experts, and gradients are
reduced beside backward); `whole`, the fastest of the searches with the batch whole; `duplex`, the fastest of them with
two parts that take turns, in the better order. Searches are those of `search-plan` for one layout (`FIRST`). `HiDup's
order` is the strategy of `duplex` phase by phase, its other collectives blocking, as in HiDup 5.

`orders` has both orders of duplex and the one that is kept, their simulated seconds and peak memory, for shipped models
on all four clusters, by the preset `tp` and as searched.

The paper's figures are plots alone, so what its text says of them stands beside ours. Its table 4 computes faster than
the FLOP/s in its released code allow: `table4` is simulated with the rate at which the computation on a single machine
takes as long as there, and the rest follows from the model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _report import publish
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import BEGIN, import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.step import sharding_of
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.overlap import ALL, Overlap
from shardwright.ir.pins import Pin
from shardwright.ir.sharding import parse_sharding
from shardwright.ir.submesh import on_mesh
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.moe import MoEConfig, sparsely_gated, switch
from shardwright.models.registry import training_step as shipped_step
from shardwright.models.vit import ViTConfig, vit_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.overlap_report import overlaps
from shardwright.passes.analysis.simulation.results import Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_passes, run_pipeline
from shardwright.passes.planning.candidates import Candidate, Choice, Layout
from shardwright.passes.planning.explore import FIRST
from shardwright.passes.planning.workbench import Refused, Workbench, good_solution
from shardwright.passes.search.decided import strategy_of
from shardwright.passes.step.step_view import step_views

SECTIONS = ("orders", "table4", "table5", "scale", "single", "bandwidth", "batch", "placement")
CLUSTERS = ("hidup-2x4-10g", "hidup-2x4-30g", "hidup-2x4-100g", "hidup-8x8")
MODELS = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
HALVES = "split-batch{parts=2 unrolled=true},insert-resharding,agree-on-choices,select-collectives"
A_CARD = 32
"""Samples for each GPU (6.1)."""

TABLE_4 = {
    "single machine": {"HiDup": (0.2972, 0.2948, 0.0297, 91.92), "DeepSpeed": (0.3988, 0.3531, 0.0282, 0.0)},
    "two, 100 Gbit/s": {"HiDup": (0.3985, 0.3088, 0.1523, 41.10), "DeepSpeed": (0.4993, 0.3479, 0.1347, 0.0)},
    "two, 30 Gbit/s": {"HiDup": (0.6657, 0.3021, 0.4432, 26.35), "DeepSpeed": (0.8251, 0.3469, 0.4585, 0.0)},
}
"""By network and system: wall, computation and communication in seconds, overlap ratio in per cent."""

TABLE_5 = {
    "random 20 %": 1.002,
    "random 50 %": 1.129,
    "communication +20 %": 1.000,
    "communication +50 %": 1.000,
    "communication -20 %": 1.000,
    "communication -50 %": 1.172,
}


@dataclass(frozen=True)
class Setting:
    """One of the paper's models on one of its clusters."""

    model: str
    gpus: int
    cluster: str
    a_card: int = A_CARD

    def on(self) -> Cluster:
        """The cluster as one axis of so many GPUs."""
        return on_mesh(find_cluster(self.cluster), Mesh.of(gpu=self.gpus))


def training_step(model: str, gpus: int, a_card: int) -> TrainingStep:
    """A model of table 1: 8 layers, a mixture of experts in every second one."""
    kind: Callable[..., MoEConfig] = sparsely_gated if model.endswith("sgmoe") else switch
    if model.startswith("bert"):
        bert = BertConfig(layers=8, vocabulary=33278, positions=128, experts=kind(max(gpus, 2)), tied=False)
        return bert_step(bert, batch=a_card * gpus, length=128)
    vit = ViTConfig(layers=8, image=32, patch=4, classes=10, experts=kind(2 * gpus, dispatch="scatter"))
    return vit_step(vit, batch=a_card * gpus)


@lru_cache(maxsize=4)
def imported(model: str, gpus: int, a_card: int) -> ModuleOp:
    """The step as passes that decide get it."""
    module = import_training_step(training_step(model, gpus, a_card))
    run_passes(Context(), module, list(BEGIN), verify_each=False)
    return module


@dataclass(frozen=True)
class Outcome:
    """A plan, simulated."""

    name: str
    simulation: Simulation
    module: ModuleOp

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.simulation.seconds

    @property
    def overlap(self) -> Overlap:
        """Of the rank that computes longest."""
        return overlaps(self.simulation, self.simulation.busiest(None).number)[ALL, ALL]


class Planner:
    """Plans one setting the three ways."""

    def __init__(self, setting: Setting, cluster: Cluster | None = None) -> None:
        self.cluster = cluster if cluster is not None else setting.on()
        module = imported(setting.model, setting.gpus, setting.a_card).clone()
        add_cluster(module, self.cluster)
        self.bench = Workbench(module, self.cluster)
        self.mesh = self.cluster.mesh

    def whole(self) -> Outcome:
        """The fastest with the batch whole."""
        return min(self._tried(Layout(self.mesh), (*FIRST, expert_parallel())), key=lambda each: each.seconds)

    def duplex(self) -> Outcome:
        """The fastest with two parts that take turns."""
        layout = Layout(self.mesh, "duplex", 2)
        return min(self._tried(layout, (*FIRST, expert_parallel())), key=lambda each: each.seconds)

    def expert_parallel(self) -> Outcome:
        """Data parallelism with the experts apart."""
        return next(self._tried(Layout(self.mesh), (expert_parallel(),)))

    def in_hidups_order(self, choice: str) -> Outcome:
        """The strategy of a duplex plan phase by phase, all else blocking."""
        found = next(each for each in (*FIRST, expert_parallel()) if each.name == choice)
        module = self.bench.written(self.bench.solve(Candidate(Layout(self.mesh, "duplex", 2), found)))
        run_pipeline(
            Context(),
            module,
            f"{HALVES},duplex{{order=phases}},overlap{{gradients=false gathers=false activations=false}},join-updates",
            verify_each=False,
        )
        return Outcome(choice, simulate_module(module)[0], module)

    def _tried(self, layout: Layout, choices: Sequence[Choice]) -> Iterator[Outcome]:
        for choice in choices:
            try:
                (made,) = self.bench.finish(self.bench.solve(Candidate(layout, choice)))
            except Refused as error:
                print(f"{choice.name} on {layout.name}: {error}", file=sys.stderr)
                continue
            yield Outcome(choice.name, made.simulation, made.module)


def expert_parallel() -> Choice:
    """What systems for mixtures of experts do: each GPU has experts of its own. The search completes the rest."""
    experts = Pin("layers.*.mlp.experts.*", parse_sharding('[{"gpu"}, {}, {}]'))
    return Choice("expert parallel", (experts,), FIRST[1].weights)


def table4() -> list[dict[str, Any]]:
    """Times and overlap ratios of BERT-SGMoE on one machine of four GPUs and on two."""
    networks = {"single machine": (4, "100g"), "two, 100 Gbit/s": (8, "100g"), "two, 30 Gbit/s": (8, "30g")}
    rows: list[dict[str, Any]] = []
    faster = 1.0
    for network, (gpus, rate) in networks.items():
        setting = Setting("bert-sgmoe", gpus, f"hidup-2x4-{rate}")
        if not rows:
            paper = TABLE_4[network]["HiDup"][1]
            faster = Planner(setting).duplex().overlap.compute / paper
        planner = Planner(setting, _sped_up(setting.on(), faster))
        duplex = planner.duplex()
        ways = {
            "HiDup": planner.in_hidups_order(duplex.name),
            "DeepSpeed": planner.expert_parallel(),
            "ours, duplex": duplex,
            "ours, whole": planner.whole(),
        }
        for way, found in ways.items():
            wall, compute, sent, ratio = TABLE_4[network].get(way, (None,) * 4)
            rows.append(
                {
                    "network": network,
                    "plan": way,
                    "strategy": found.name,
                    "wall s": found.seconds,
                    "paper's": wall,
                    "compute s": found.overlap.compute,
                    "compute, paper": compute,
                    "sent s": found.overlap.communication,
                    "sent, paper": sent,
                    "overlap %": 100 * found.overlap.ratio,
                    "overlap, paper": ratio,
                    "rate": faster,
                }
            )
    return rows


def _sped_up(cluster: Cluster, times: float) -> Cluster:
    """The cluster with devices that compute and move bytes faster."""
    devices = tuple(
        replace(
            each,
            flops=tuple((dtype, rate * times) for dtype, rate in each.flops),
            memory_bandwidth=each.memory_bandwidth * times,
            launch=each.launch / times,
        )
        for each in cluster.devices
    )
    return replace(cluster, devices=devices)


def table5(draws: int) -> list[dict[str, Any]]:
    """How much slower the step is whose strategy was found with wrong times of ops."""
    setting = Setting("bert-sgmoe", 8, "hidup-2x4-100g")
    true = Planner(setting)
    best = true.duplex()
    choice = next(each for each in (*FIRST, expert_parallel()) if each.name == best.name)
    rows: list[dict[str, Any]] = []
    for name, paper in TABLE_5.items():
        kind, _, amount = name.removesuffix(" %").partition(" ")
        noise = int(amount) / 100
        found = [
            _by_wrong_times(true, choice, kind == "random", noise, Random(draw)) / best.seconds
            for draw in range(draws if kind == "random" else 1)
        ]
        rows.append({"noise": name, "relative time": statistics.mean(found), "paper": paper, "draws": len(found)})
    return rows


def _by_wrong_times(planner: Planner, choice: Choice, is_random: bool, noise: float, random: Random) -> float:
    """The true seconds of the plan that is best by times that err: of ops and communications, or of these alone."""
    bench, candidate = planner.bench, Candidate(Layout(planner.mesh, "duplex", 2), choice)
    ((view, given),) = bench.problems(candidate)
    unary = tuple(costs * (1 + random.uniform(-noise, noise)) if is_random else costs for costs in given.problem.unary)
    edges = tuple(
        replace(edge, table=edge.table * (1 + (random.uniform(-noise, noise) if is_random else noise)))
        for edge in given.problem.edges
    )
    wrong = replace(given.problem, unary=unary, edges=edges)
    strategy = strategy_of(given, good_solution(wrong), saves_memory=False)
    module = bench.solve(candidate).step.written([strategy])
    assert view.stage is None
    run_pipeline(
        Context(),
        module,
        f"{HALVES},duplex,overlap,join-updates",
        verify_each=False,
    )
    return simulate_module(module)[0].seconds


def orders(models: Sequence[str], clusters: Sequence[str]) -> list[dict[str, Any]]:
    """The step of shipped models with the batch whole, and with two parts in each order."""
    rows: list[dict[str, Any]] = []
    for name in models:
        step = import_training_step(shipped_step(name))
        run_passes(Context(), step, list(BEGIN), verify_each=False)
        for each in clusters:
            for strategy in ("search-strategy{algorithm=fixed pins=tp}", "search-strategy"):
                rows.append({"step": name, "cluster": each, "strategy": strategy} | _by_order(step, each, strategy))
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _by_order(step: ModuleOp, name: str, strategy: str) -> dict[str, float]:
    """Milliseconds and peaks of one strategy in each order."""
    decided, cluster = step.clone(), find_cluster(name)
    add_cluster(decided, cluster)
    run_pipeline(Context(), decided, strategy, verify_each=False)
    halves, found = decided.clone(), dict[str, float]()
    run_pipeline(Context(), halves, HALVES, verify_each=False)
    whole = "insert-resharding,agree-on-choices,select-collectives,overlap,join-updates"
    ways = {"whole": (decided, whole)}
    ways |= {order: (halves, f"duplex{{order={order}}},overlap,join-updates") for order in ("phases", "list", "best")}
    for way, (module, passes) in ways.items():
        made = module.clone()
        run_pipeline(Context(), made, passes, verify_each=False)
        ((view, on),) = step_views(made)
        found[f"{way} ms"] = 1e3 * simulate_module(made)[0].seconds
        found[f"{way} GiB"] = peak_memory(view.func, on.mesh, blocks=on.blocks).bytes / 2**30
    return found


def compared(settings: Sequence[Setting], says: str, *, label: Callable[[Setting], str]) -> list[dict[str, Any]]:
    """Each setting the three ways, with what the paper's text says of its figure."""
    rows: list[dict[str, Any]] = []
    for setting in settings:
        planner = Planner(setting)
        hand, whole, duplex = planner.expert_parallel(), planner.whole(), planner.duplex()
        rows.append(
            {
                "setting": label(setting),
                "expert parallel ms": 1e3 * hand.seconds,
                "whole ms": 1e3 * whole.seconds,
                "duplex ms": 1e3 * duplex.seconds,
                "HiDup's order ms": 1e3 * planner.in_hidups_order(duplex.name).seconds,
                "ratio of duplex": duplex.overlap.ratio,
                "auto": "duplex" if duplex.seconds < whole.seconds else "whole",
                "speed-up": hand.seconds / min(whole.seconds, duplex.seconds) - 1,
                "paper": says,
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def scale(models: Sequence[str], gpus: Sequence[int]) -> list[dict[str, Any]]:
    """Figure 6: up to 64 GPUs on 8 machines."""
    says = {"bert": "up to 18 % over 16 GPUs", "vit": "up to 61 %"}
    return [
        row
        for model in models
        for row in compared(
            [Setting(model, count, "hidup-8x8") for count in gpus],
            says[model.partition("-")[0]],
            label=lambda setting: f"{setting.model}, {setting.gpus} GPUs",
        )
    ]


def single(models: Sequence[str]) -> list[dict[str, Any]]:
    """Figure 7: a single machine of 8 GPUs."""
    settings = [Setting(model, 8, "hidup-8x8") for model in models]
    return compared(settings, "as good as data parallelism", label=lambda setting: setting.model)


def bandwidth(model: str) -> list[dict[str, Any]]:
    """Figure 8: two machines of four GPUs at three rates."""
    settings = [Setting(model, 8, f"hidup-2x4-{rate}") for rate in ("10g", "30g", "100g")]
    return compared(settings, "up to 14 %", label=lambda setting: setting.cluster)


def batch(model: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Figure 9: samples for each GPU, on two machines at 100 Gbit/s."""
    settings = [Setting(model, 8, "hidup-2x4-100g", size) for size in sizes]
    return compared(settings, "gains from 16 on", label=lambda setting: f"{setting.a_card} a GPU")


def placement(model: str) -> list[dict[str, Any]]:
    """Figures 11 and 12: how many parameters are split, and how the products of experts are, by rate."""
    rows: list[dict[str, Any]] = []
    for rate in ("10g", "30g", "100g"):
        found = Planner(Setting(model, 8, f"hidup-2x4-{rate}")).duplex()
        ((view, _),) = step_views(found.module)
        homes = [sharding_of(each.argument) for each in view.inputs if each.role == "train.param"]
        split = sum(bool(home.split_axes) for home in homes)
        products = Counter(str(op.signature) for op in view.ops if op.name in ("aten.bmm", "aten.baddbmm"))
        most = products.most_common(1)[0][0] if products else ""
        says = "experts apart, as GShard" if rate == "100g" else "gating on every card" if rate == "10g" else ""
        rows.append(
            {"rate": rate, "strategy": found.name, "split": split, "whole": len(homes) - split}
            | {"most products of experts": most, "figure 12": says}
        )
    return rows


def main() -> None:
    """Print the tables and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="of figures 6 and 7")
    parser.add_argument("--gpus", nargs="+", type=int, default=(8, 16, 32, 64), help="of figure 6")
    parser.add_argument("--sizes", nargs="+", type=int, default=(4, 8, 16, 32, 64), help="of figure 9")
    parser.add_argument("--draws", type=int, default=10, help="of table 5")
    parser.add_argument("--shipped", nargs="+", default=("bert-base", "gpt2-small", "vit-base", "bert-sgmoe", "vgg19"))
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=CLUSTERS, help="these two of `orders`")
    options = parser.parse_args()
    sections: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "orders": partial(orders, options.shipped, options.clusters),
        "table4": table4,
        "table5": partial(table5, options.draws),
        "scale": partial(scale, options.models, options.gpus),
        "single": partial(single, options.models),
        "bandwidth": partial(bandwidth, "bert-sgmoe"),
        "batch": partial(batch, "bert-sgmoe", options.sizes),
        "placement": partial(placement, "bert-sgmoe"),
    }
    for name in options.only:
        publish(f"hidup_{name}", sections[name](), command=f"python benchmarks/papers/hidup.py --only {name}")


if __name__ == "__main__":
    main()
