"""
HiDup's figures 6 to 9, 11 and 12 (`hidup.py`), for steps that are planned and simulated here.

Figures 6 to 9 compare the steps of systems. `over DeepSpeed` is DeepSpeed's time over HiDup's time - 1, both as
modelled in `hidup_plans.py`. `speed-up` is the time of `expert parallel`, which overlaps its communication too, over
the smaller of our `whole` and `duplex` times, - 1. FastMoE, the paper's best baseline in some settings, has its own
kernels and is not modelled.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from _report import plot_bars, plot_grouped
from hidup_plans import Planner, Setting

from shardwright.dialects.step import sharding_of
from shardwright.passes.step.blocks import layer_of
from shardwright.passes.step.step_view import StepView, step_views

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
    row = {
        "DeepSpeed's way ms": 1e3 * deepspeed.seconds,
        "HiDup's way ms": 1e3 * hidup.seconds,
        "over DeepSpeed": deepspeed.seconds / hidup.seconds - 1,
        "expert parallel ms": 1e3 * hand.seconds,
        "whole ms": 1e3 * whole.seconds,
        "duplex ms": 1e3 * duplex.seconds,
        "overlap of duplex": duplex.overlap.ratio,
        "faster": "duplex" if duplex.seconds < whole.seconds else "whole",
        "speed-up": hand.seconds / min(whole.seconds, duplex.seconds) - 1,
    }
    print(setting, row, file=sys.stderr, flush=True)
    return row


def compared(
    settings: Sequence[Setting], *, label: Callable[[Setting], str], says: Callable[[Setting], str]
) -> list[dict[str, Any]]:
    """Return each setting in all ways, with the statement in the paper's text."""
    return [{"setting": label(setting), **by_way(setting), "paper": says(setting)} for setting in settings]


def scale(models: Sequence[str], gpus: Sequence[int]) -> list[dict[str, Any]]:
    """Return figure 6: up to 64 GPUs on 8 machines."""

    def says(setting: Setting) -> str:
        if setting.model.startswith("vit"):
            return "up to 61 % over the best"
        return "like the best" if setting.gpus <= 16 else "up to 18 % over the best"

    settings = [Setting(model, count, "hidup-8x8") for model in models for count in gpus]
    return compared(settings, label=lambda setting: f"{setting.model}, {setting.gpus} GPUs", says=says)


def single(models: Sequence[str]) -> list[dict[str, Any]]:
    """Return figure 7: a single machine of 8 GPUs, with data parallelism as in PyTorch DDP and Horovod."""
    rows: list[dict[str, Any]] = []
    for model in models:
        setting = Setting(model, 8, "hidup-8x8")
        (row,) = compared([setting], label=lambda case: case.model, says=lambda _: "as DDP and Horovod")
        ddp = Planner(setting).data_parallel().seconds
        rows.append({**row, "DDP ms": 1e3 * ddp, "HiDup over DDP": ddp / (1e-3 * row["HiDup's way ms"]) - 1})
    return rows


def bandwidth(model: str) -> list[dict[str, Any]]:
    """Return figure 8: two machines of four GPUs at three rates."""
    settings = [Setting(model, 8, f"hidup-2x4-{rate}") for rate in ("10g", "30g", "100g")]
    return compared(settings, label=lambda setting: setting.cluster, says=lambda setting: FIGURE_8[setting.cluster])


def batch(model: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return figure 9: the number of samples per GPU, on two machines at 100 Gbit/s."""
    settings = [Setting(model, 8, "hidup-2x4-100g", size) for size in sizes]
    return compared(
        settings,
        label=lambda setting: f"{setting.a_card} a GPU",
        says=lambda setting: "faster" if setting.a_card > 16 else "like the others",
    )


def plot_figure(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot the milliseconds of a step in each way."""
    ways = [column for column in rows[0] if column.endswith(" ms")]
    series = {way.removesuffix(" ms"): [row[way] for row in rows] for way in ways}
    title = f"HiDup, {name.removeprefix('hidup_')}"
    plot_grouped(name, [row["setting"] for row in rows], series, title=title, ylabel="simulated step, ms")


def placement(model: str) -> list[dict[str, Any]]:
    """Return figures 11 and 12 by rate: how many parameters are split, and the signatures of experts and gating."""
    rows: list[dict[str, Any]] = []
    for rate in ("10g", "30g", "100g"):
        outcome = Planner(Setting(model, 8, f"hidup-2x4-{rate}")).duplex()
        ((view, _),) = step_views(outcome.module)
        homes = [sharding_of(value.argument) for value in view.inputs if value.role == "train.param"]
        split = sum(bool(home.split_axes) for home in homes)
        says = "experts apart, as GShard" if rate == "100g" else "gating on every card" if rate == "10g" else ""
        rows.append(
            {"rate": rate, "strategy": outcome.name, "split": split, "whole": len(homes) - split}
            | {"experts": _products(view, ".mlp.experts"), "gating": _products(view, ".router"), "figure 12": says}
        )
    return rows


def _products(view: StepView, part: str) -> str:
    """Return the most common signature of the products in a part of the model."""
    products = (op for op in view.ops if part in layer_of(op) and op.name in ("aten.bmm", "aten.mm"))
    return Counter(str(op.signature) for op in products).most_common(1)[0][0]


def plot_placement(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot the numbers of split and of whole parameters, by rate."""
    series = {kind: [row[kind] for row in rows] for kind in ("whole", "split")}
    title = "HiDup, figure 11: placement of parameters"
    plot_bars(name, [row["rate"] for row in rows], series, title=title, ylabel="tensors of parameters")
