"""
Figures 5 to 9 of "On Optimizing the Communication of Model Parallelism" (Zhuang et al., MLSys 2023), by simulation.

Figures 5, 6 and 8 are single transfers (`cross_mesh.py --figures`). Figures 7 and 9 are whole steps of the paper's
models (Table 3) on two p3.8xlarge, in two stages of four GPUs, planned by the usual passes. The paper shows these
figures only as plots; the tables compare our results with statements in its text.

In figure 6, `Alpa` overlaps all-gathers with the sends of later slices. `Alpa in order` does not: every GPU runs its
sends and all-gathers in the order of the slices. `Alpa one by one` completes each slice before the next one starts.

In figures 7 and 9, `Send/Recv`, `Alpa` (the better of the two all-gathers) and `Broadcast` are 1f1b without overlap: a
stage computes nothing while it sends or receives. Their loop over micro-batches is executed slot by slot, with the
simulator's seconds of fragments and transfers. `Overlap` is 1f1b and `Eager-1F1B` is eager-1f1b with delayed gradients
of weights, both simulated as planned. `Signal` is 1f1b with NICs that take no time. The rates of a V100 are its data
sheet times `rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from _cross_mesh_cases import ONE_TO_MANY, OVER_ALPA, Case, as_alpa, bound, outcome, paper_cases, to_hosts
from _plain_plans import pins_of
from _report import Rows, columns_of, plot_grouped, publish
from _steps import after
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.stage_program import schedule_of
from shardwright.dialects.staged import Stages, transfers
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.port_schedule import Order
from shardwright.ir.submesh import on_mesh
from shardwright.ir.transfer_plan import Method
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.unet import UNetConfig, unet_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.alone import seconds_alone
from shardwright.passes.analysis.simulation.simulate import Simulator, places_of, simulate_module
from shardwright.passes.plan_transfers import PlanTransfersPass
from shardwright.passes.schedule_pipeline import SchedulePipelinePass
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.stages.schedules import ScheduleName
from shardwright.passes.step.step_view import cluster_of_module, step_views

FEW = 4
"""Largest number of micro-batches that figure 9 calls few."""

ALL_GATHERS: tuple[Method, ...] = ("local_allgather", "global_allgather")

FIGURE_5 = {
    "1x1": "all alike",
    "1x2": "ours and Alpa within 1 %, send/recv grows by each GPU",
    "1x3": "as 1x2, but Alpa drops, for it cannot divide by 3",
    "1x4": "as 1x2",
    "2x2": "Alpa's all-gather crosses hosts, ours hardly grows",
    "3x2": "as 2x2, but Alpa drops, for it cannot divide by 3",
    "4x2": "as 2x2",
}
FIGURE_8 = dict.fromkeys(("case1", "case8"), "all alike") | {"case2": "naive congests: all from the first host"}
AT_LEAST_AT_MOST = {"near 1": (1.0, 1.0), "3 to 10": (3.0, 10.0), "up to 2.5": (1.0, 2.5)}
"""Bounds on the speed-up over Alpa for each statement in the text of figure 6."""

FIGURE_8_ELSE = "naive and load balance congest, ours does not"


def _seconds(case: Case, method: Method, order: Order = "greedy") -> float:
    return outcome(case, method, order).seconds


def figure_5() -> Rows:
    """Return the rows of figure 5: from one GPU to one host with 1 to 4 GPUs, and to 1 to 4 hosts with 2 GPUs."""
    rows = Rows()
    for hosts, gpus in ONE_TO_MANY:
        case, to = to_hosts(hosts, gpus), f"{hosts}x{gpus}"
        # On one host the all-gather is local and uses NVLink only; with several hosts it crosses them.
        alpa = _seconds(case, "local_allgather" if hosts == 1 else "global_allgather")
        row: dict[str, Any] = {"to": to, "send/recv s": _seconds(case, "send_recv"), "Alpa s": alpa}
        row |= {"ours s": _seconds(case, "broadcast", "best"), "bound s": bound(case)}
        rows.append(row | {"in the paper": FIGURE_5[to]})
    return rows


def _table_2() -> list[Case]:
    return [case for case in paper_cases() if case.name in OVER_ALPA]


def figure_6() -> Rows:
    """Return the rows of figure 6: the cases of Table 2 by method."""
    rows = Rows()
    for case in _table_2():
        ours, alpa = _seconds(case, "broadcast", "best"), min(_seconds(case, method) for method in ALL_GATHERS)
        in_order, one_by_one = as_alpa(case)
        row = {"case": case.name, "send/recv s": _seconds(case, "send_recv"), "Alpa s": alpa, "ours s": ours}
        row |= {"Alpa in order s": in_order, "Alpa one by one s": one_by_one}
        row |= {"over Alpa": alpa / ours, "in order": in_order / ours, "one by one": one_by_one / ours}
        rows.append(row | {"over Alpa, paper": OVER_ALPA[case.name]})
    return rows


def figure_8() -> Rows:
    """Return the rows of figure 8: the cases of Table 2 by order of broadcasts."""
    orders: dict[str, Order] = {"naive s": "naive", "load balance s": "greedy", "ours s": "best"}
    return [
        {"case": case.name}
        | {title: _seconds(case, "broadcast", order) for title, order in orders.items()}
        | {"bound s": bound(case), "in the paper": FIGURE_8.get(case.name, FIGURE_8_ELSE)}
        for case in _table_2()
    ]


@dataclass(frozen=True)
class Model:
    """
    A model of Table 3, with micro-batches of `batch` samples.

    Args:
        sizes: sizes of the axes of a stage of four GPUs.
        pins: pins of the strategy as TOML; by default it is searched for.
    """

    name: str
    make: Callable[..., TrainingStep]
    sizes: tuple[tuple[str, int], ...]
    pins: str | None
    batch: int
    dtype: torch.dtype = torch.float32


_GPT = GPT2Config(layers=32, width=2560, heads=32, vocabulary=51200, positions=1024)
_UNET = UNetConfig(widths=(472, 944, 1888, 3776, 7552), image=64, attention=2)
_gpt: Callable[..., TrainingStep] = partial(gpt2_step, _GPT, length=1024)


MODELS = (
    Model("GPT case1", _gpt, (("dp", 2), ("tp", 2)), pins_of(("dp", ("dp",)), ("tp", ("tp",))), 8, torch.float16),
    Model("GPT case2", _gpt, (("dp", 4),), pins_of(("dp", ("dp",))), 8, torch.float16),
    Model("U-Trans case1", partial(unet_step, _UNET), (("gpu", 4),), None, 8),
)
IN_PAPER = {
    "GPT case1": "ours 1.1 over Alpa, at least 0.97 of Signal",
    "GPT case2": "ours 1.1 over Alpa, at least 0.97 of Signal",
    "U-Trans case1": "ours 1.5 over Alpa, at least 0.97 of Signal",
}


_NO_LIMIT = 2.0**50
"""Bytes of memory that always suffice; the paper recomputes activations, so its models fit."""


def cluster(sizes: tuple[tuple[str, int], ...], rate: float) -> Cluster:
    """Return two hosts of the paper with GPUs at `rate` of the data sheet and without a limit of memory."""
    hosts = on_mesh(find_cluster("cross-mesh-p3-4x4"), Mesh.of(node=2, **dict(sizes)))
    devices = tuple(
        replace(device, memory=_NO_LIMIT, flops=tuple((dtype, rate * flops) for dtype, flops in device.flops))
        for device in hosts.devices
    )
    return replace(hosts, devices=devices)


@cache
def planned(model: Model, parts: int, rate: float, chunks: int = 1) -> ModuleOp:
    """Return a step in two stages of at most `chunks` chunks, with all decisions but schedule and transfers."""
    module = import_training_step(model.make(batch=model.batch * parts), dtype=model.dtype)
    add_cluster(module, cluster(model.sizes, rate))
    search = SearchStrategyPass("fixed", pins=model.pins) if model.pins else SearchStrategyPass()
    cut = "stages=2" + (f" chunks={chunks} micro_batches={parts}" if chunks > 1 else "")
    rest = f"split-batch{{parts={parts}}},communicate,overlap"
    return after(module, f"prepare,partition-stages{{{cut}}}", search, rest)


def scheduled(base: ModuleOp, schedule: ScheduleName, method: Method, order: Order) -> ModuleOp:
    """Return a planned step with a schedule and tasks for its transfers."""
    return after(base.clone(), SchedulePipelinePass(schedule), PlanTransfersPass(method, order))


def simulated(module: ModuleOp, whole: Cluster | None = None) -> float:
    return simulate_module(module, whole)[0].seconds


def instant(whole: Cluster) -> Cluster:
    """Return the cluster with NICs that take no time. Stages are on different hosts, so NICs carry only transfers."""
    assert whole.topology is not None
    levels = tuple(
        replace(level, latency=1e-12, bandwidth=1e18) if level.name == "ethernet" else level
        for level in whole.topology.levels
    )
    return replace(whole, topology=replace(whole.topology, levels=levels))


def in_turn(module: ModuleOp) -> float:
    """
    Return the seconds of a step whose stages compute nothing while they send or receive.

    Ops before and after the loop over micro-batches take as long as with NICs that take no time.
    """
    whole = cluster_of_module(module)
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    clusters = [own for _, own in step_views(module)]
    fragments, crossing = seconds_alone(Simulator(func, places_of(func, clusters, whole)))
    none = dict.fromkeys(crossing, 0.0)
    rest = simulated(module, instant(whole)) - loop_seconds(func, fragments, none)
    return rest + loop_seconds(func, fragments, crossing)


def loop_seconds(func: FuncOp, fragments: Mapping[str, float], crossing: Mapping[str, float]) -> float:
    """Return the seconds of all slots, if each stage computes, sends or receives one thing at a time."""
    stages, receivers = Stages(func), dict[str, int | None]()
    for op in transfers(func):
        receivers[op.label.data] = stages.of_value(op.result)
    slots = schedule_of(func)
    now, at, sent = [0.0] * len(slots), [0] * len(slots), dict[tuple[str, int], float]()
    moved = True
    while moved:
        moved = False
        for stage, own in enumerate(slots):
            while at[stage] < len(own):
                slot = own[at[stage]]
                key = slot.label, slot.part
                if slot.action == "run":
                    now[stage] += fragments[slot.label]
                elif slot.action == "start" and receivers[slot.label] != stage:
                    sent[key] = now[stage]
                    now[stage] += crossing[slot.label]
                elif slot.action == "wait":
                    if key not in sent:
                        break
                    now[stage] = max(now[stage], sent[key]) + crossing[slot.label]
                at[stage], moved = at[stage] + 1, True
    assert all(done == len(own) for done, own in zip(at, slots, strict=True))
    return max(now)


def ways(base: ModuleOp) -> dict[str, float]:
    """Return the seconds of a step for each method that the figures compare."""
    broadcast = scheduled(base, "1f1b", "broadcast", "best")
    return {
        "Send/Recv": in_turn(scheduled(base, "1f1b", "send_recv", "greedy")),
        "Alpa": min(in_turn(scheduled(base, "1f1b", method, "greedy")) for method in ALL_GATHERS),
        "Broadcast": in_turn(broadcast),
        "Overlap": simulated(broadcast),
        "Eager-1F1B": simulated(scheduled(base, "eager-1f1b", "broadcast", "best")),
        "Signal": simulated(broadcast, instant(cluster_of_module(broadcast))),
    }


def figure_7(parts: int, rates: Sequence[float], names: Sequence[str] = ()) -> Rows:
    """Return the rows of figure 7: whole steps of all models, or of the models in `names`."""
    rows = Rows()
    for model in (model for model in MODELS if not names or model.name in names):
        for rate in rates:
            seconds = ways(planned(model, parts, rate))
            del seconds["Overlap"]
            row: dict[str, Any] = {"model": model.name, "rate": rate, "micro-batches": parts}
            row |= {f"{way} s": value for way, value in seconds.items()}
            ours = seconds["Eager-1F1B"]
            row |= {"over Alpa": seconds["Alpa"] / ours, "of Signal": seconds["Signal"] / ours}
            rows.append(row | {"in the paper": IN_PAPER[model.name]})
    return rows


def figure_9(many: int, rates: Sequence[float]) -> Rows:
    """Return the rows of figure 9: the U-Transformer with few and with `many` micro-batches."""
    few = "few: Overlap 3 % slower than Eager-1F1B"
    told = {2: few, 4: few, many: "many: Overlap 30 % faster than Broadcast, Eager-1F1B 15 % more"}
    rows = Rows()
    for parts, in_paper in told.items():
        for rate in rates:
            seconds = ways(planned(MODELS[-1], parts, rate))
            shown = {f"{way} s": seconds[way] for way in ("Broadcast", "Overlap", "Eager-1F1B")}
            row: dict[str, Any] = {"micro-batches": parts, "rate": rate, **shown}
            row |= {"Overlap over Broadcast": seconds["Broadcast"] / seconds["Overlap"]}
            row |= {"Eager over Overlap": seconds["Overlap"] / seconds["Eager-1F1B"]}
            rows.append(row | {"in the paper": in_paper})
    return rows


def _in_paper(number: int, rows: Rows) -> dict[str, list[float]]:
    """Return speed-ups of a figure with the numbers in the paper's text, or nothing if the text has none."""
    match number:
        case 6:
            text = [AT_LEAST_AT_MOST[row["over Alpa, paper"]] for row in rows]
            titles = ("ours over Alpa", "over Alpa in order", "over Alpa, one slice at a time")
            bars = dict(zip(titles, columns_of(rows, "over Alpa", "in order", "one by one").values(), strict=True))
            return bars | {"paper, at least": [low for low, _ in text], "paper, at most": [high for _, high in text]}
        case 7:
            text = [1.5 if row["model"] == MODELS[-1].name else 1.1 for row in rows]
            return {"ours over Alpa": [row["over Alpa"] for row in rows], "paper": text}
        case 9:
            few = [row["micro-batches"] <= FEW for row in rows]
            bars = columns_of(rows, "Overlap over Broadcast")
            bars["paper (many)"] = [math.nan if is_few else 1.3 for is_few in few]
            bars["Eager-1F1B over Overlap"] = [row["Eager over Overlap"] for row in rows]
            return bars | {"paper": [1.03 if is_few else 1.15 for is_few in few]}
        case _:
            return {}


def publish_figures(parts: int, rates: Sequence[float], models: Sequence[str], numbers: Sequence[int]) -> None:
    """
    Print the tables, and write JSON files and plots: seconds, and speed-ups with the paper's numbers.

    `parts` is the number of micro-batches of figure 7, and the larger number of figure 9.
    """
    makers: dict[int, tuple[Callable[[], Rows], tuple[str, ...]]] = {
        5: (figure_5, ("to",)),
        6: (figure_6, ("case",)),
        7: (lambda: figure_7(parts, rates, models), ("model", "rate")),
        8: (figure_8, ("case",)),
        9: (lambda: figure_9(parts, rates), ("micro-batches", "rate")),
    }
    for number in numbers:
        make, names = makers[number]
        rows = make()
        publish(f"cross_mesh_figure_{number}", rows)
        labels = [" x ".join(str(row[name]) for name in names) for row in rows]
        ways = [column for column in rows[0] if column.endswith(" s") and column != "bound s"]
        bars = {way.removesuffix(" s"): [row[way] for row in rows] for way in ways}
        title = f"Figure {number} of the cross-mesh paper"
        plot_grouped(f"cross_mesh_figure_{number}", labels, bars, title=title, ylabel="simulated time, s")
        if speedups := _in_paper(number, rows):
            plot_grouped(f"cross_mesh_figure_{number}_speedups", labels, speedups, title=title, ylabel="speed-up")
