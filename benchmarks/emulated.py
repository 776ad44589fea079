"""
Measure duplex, products in parts, schedules and balanced shares on emulated links, each against alternatives.

    sudo python benchmarks/emulated.py [--pairs 40] [--rate 200mbit] [--only duplex orders parts schedules shares ...]
    sudo python benchmarks/emulated.py --sweep [RATE ...] [--pairs 20]
    python benchmarks/emulated.py --simulate [RATE ...]

Each host is a network namespace whose sending rate is limited to RATE (`_netns`). The programs of one comparison run in
the same processes and take their steps in random order. The ratio is the median of the paired ratios to the first
program, which runs twice, as a control, with a 95 % bootstrap interval.

`--sweep` compares duplex at several rates, for the FLOP/s of a matrix product that is timed first. `auto` is the side
that the simulator predicts to be the faster, and `auto / better` compares it with the side that is. Step, computation,
communication, overlapped and exposed communication are given in ms, as simulated and as measured by `StepProfile`.
`--simulate` simulates products and collectives in parts: each cell is the step in ms, with its ratio to the first.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import _netns
from _report import Rows, arguments, parsed, plot_ratios, progress, publish, ratio

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step

if TYPE_CHECKING:
    from shardwright.api.compile import CompiledStep

_GPT2 = GPT2Config(layers=4, width=256, heads=4, vocabulary=1024, positions=64)
STEPS: dict[str, Callable[[], TrainingStep]] = {
    "gpt2": lambda: gpt2_step(_GPT2, batch=16, length=64),
    "rows": lambda: mlp_step((256, 256, 256, 256), batch=4096),
    "mlp": lambda: mlp_step((256, 512, 512, 64), batch=8192),
    "blocks": lambda: mlp_step((256, 1024, 256, 1024, 16), batch=1024),
}
_TENSOR_PARALLEL, _DATA_PARALLEL = (f"prepare,search-strategy{{algorithm=fixed pins={pin}}}" for pin in ("tp", "dp"))


@dataclass(frozen=True)
class Comparison:
    """
    Programs of one step on one emulated cluster, as pass pipelines; the others are compared with the first.

    Args:
        shares: share of a core that a rank gets, by rank.
        speeds: FLOP/s of each rank in the planned cluster, relative to a core.
        fragment: shortest seconds of a pipeline's fragment. Sleeping fills them, so that other processes matter less.
    """

    step: str
    pipelines: Mapping[str, str]
    shares: Mapping[int, float] = field(default_factory=dict[int, float])
    speeds: Sequence[float] = (1.0, 1.0)
    fragment: float = 0.0


def _pipeline(schedule: str, count: int = 2) -> str:
    program = f"program{{mode=pipeline parts=8 schedule={schedule}}}"
    return f"prepare,partition-stages{{stages={count}}},search-strategy,{program},finish"


def _in_parts(before: str, chunks: str) -> str:
    """Return the passes of tensor parallelism with a batch or with products in parts."""
    return f"{_TENSOR_PARALLEL},{before}communicate,{chunks},overlap,join-updates,finish"


_WHOLE = f"{_TENSOR_PARALLEL},program,finish"
_PARTS = {
    "whole products": _WHOLE,
    "in 2 parts": _in_parts("", "chunk-collectives{parts=2}"),
    "in 4 parts": _in_parts("", "chunk-collectives{parts=4}"),
    "by cost": f"{_TENSOR_PARALLEL},program{{chunked=true}},finish",
}
"""Tensor parallelism with whole products, and with products whose reductions are in parts."""

_ORDERS = {
    f"duplex, {parts} parts, {order}": _in_parts(
        f"split-batch{{parts={parts} unrolled=true}},", f"duplex{{order={order}}}"
    )
    for parts, order in ((2, "phases"), (2, "list"), (4, "list"))
}
_SHARES = {
    "even": f"{_DATA_PARALLEL},program,finish",
    "balanced": f"{_DATA_PARALLEL},balance-ratios,program,finish",
}
_THREE = {name: _pipeline(name, 3) for name in ("1f1b", "eager-1f1b", "zero-bubble")}

COMPARISONS: dict[str, Comparison] = {
    "duplex": Comparison(
        "gpt2", {"no duplex": _WHOLE, "duplex": f"{_TENSOR_PARALLEL},program{{mode=duplex parts=2}},finish"}
    ),
    "orders": Comparison("gpt2", {"no duplex": _WHOLE, **_ORDERS}),
    "parts": Comparison("gpt2", _PARTS),
    "parts of blocks": Comparison("blocks", _PARTS),
    "schedules": Comparison("gpt2", {name: _pipeline(name) for name in ("gpipe", "1f1b", "eager-1f1b")}),
    "three stages": Comparison("rows", _THREE, speeds=(1.0, 1.0, 1.0), fragment=0.08),
    "shares": Comparison("mlp", _SHARES, shares={1: 0.4}, speeds=(1.0, 0.4)),
}

FLOPS = 25e9
"""Default FLOP/s of a core, if it is not measured."""

SWEEP = ("25mbit", "50mbit", "100mbit", "150mbit", "200mbit", "300mbit", "400mbit", "800mbit")
SIMULATED = ("100mbit", "200mbit", "400mbit", "800mbit", "1600mbit")


def emulated_cluster(comparison: Comparison, rate: str, flops: float = FLOPS) -> Cluster:
    from shardwright.ir.cluster_file import parse_cluster

    beta = 8.0 / (float(rate.removesuffix("mbit")) * 1e6)
    places = "".join(
        f"[device.d{i}]\nflops = {{ float32 = {flops * speed} }}\nmemory_bandwidth = {flops / 5 * speed}\n"
        f'memory = "4GiB"\nlaunch = {10e-6 / speed}\n[[place]]\ndevice = "d{i}"\ncount = 1\n'
        for i, speed in enumerate(comparison.speeds)
    )
    text = f'version = 1\nname = "emulated"\nmesh = ["gpu={len(comparison.speeds)}"]\n'
    link = f"[link.gpu]\nlatency = 5e-4\nbandwidth = {1 / beta}\n"
    return parse_cluster(text + places + link, "emulated")


def plans(comparison: Comparison, rate: str, flops: float = FLOPS) -> dict[str, CompiledStep]:
    """Compile every program for the emulated cluster."""
    from shardwright.api.compile import PlanOptions, compile_step

    cluster = emulated_cluster(comparison, rate, flops)
    step = STEPS[comparison.step]()
    return {
        name: compile_step(step, cluster, PlanOptions(pipeline=passes), name=name)
        for name, passes in comparison.pipelines.items()
    }


def worker(request: Any) -> dict[str, Any]:
    """Take steps of all programs in turn as one rank, and return their seconds by round, and their profiles."""
    from _sides import by_round, executor_of, timed

    from shardwright.lowering.capture.calling import batch_items

    step = STEPS[request["step"]]()
    batch = batch_items(step.batch)
    sides = [executor_of(step, text, name) for name, text in request["programs"]]
    if request["fragment"]:
        for side in sides:
            _lengthen(side.main.function.__globals__, request["fragment"])
    blocks = [partial(timed, partial(side.step, batch)) for side in sides]
    rows = [[took.seconds for took in row] for row in by_round(blocks, request["pairs"], warm=3)]
    return {"rows": rows, "measured": [_measured(side, batch) for side in sides] if request["profile"] else []}


def _measured(executor: Any, batch: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds by activity in the median of seven steps, on the rank that computes longest."""
    from shardwright.api.step_profile import profiled
    from shardwright.ir.overlap import ALL

    with profiled(executor, compiled=False) as profile:
        for _ in range(7):
            executor.step(batch)
    totals = max((each[ALL, ALL] for each in profile.overlaps.values()), key=lambda each: each.compute)
    return {"step": max(each.seconds for each in profile.middle), **_activities(totals)}


def _activities(totals: Any) -> dict[str, float]:
    return {name: getattr(totals, name) for name in ("compute", "communication", "overlapped", "exposed")}


def _lengthen(names: dict[str, Any], seconds: float) -> None:
    """Wrap every fragment among the functions of a program so that it takes at least `seconds`."""
    for name, function in list(names.items()):
        if re.fullmatch(r"(forward|backward|weights)\d+", name):

            def longer(*given: Any, run: Callable[..., Any] = function) -> Any:
                start = time.perf_counter()
                results = run(*given)
                time.sleep(max(0.0, seconds - (time.perf_counter() - start)))
                return results

            names[name] = longer


def run_all(
    comparison: Comparison, rate: str, pairs: int, compiled: Mapping[str, CompiledStep], *, profile: bool = False
) -> tuple[Sequence[Sequence[float]], list[dict[str, float]]]:
    """Return the seconds of each program (the first one twice) over the rounds, and the profiles of the programs."""
    texts = [(name, plan.program) for name, plan in compiled.items()]
    request = {"step": comparison.step, "programs": [texts[0], *texts], "pairs": pairs}
    request |= {"fragment": comparison.fragment, "profile": profile}
    answer = _netns.answers(__file__, [rate] * len(comparison.speeds), request, shares=comparison.shares)
    return list(zip(*answer["rows"], strict=True)), answer["measured"]


def measure(name: str, rate: str, pairs: int) -> Rows:
    """Return a row for each program of one comparison."""
    comparison = COMPARISONS[name]
    (first, *others), _ = run_all(comparison, rate, pairs, plans(comparison, rate))
    titles, rows = list(comparison.pipelines), Rows()
    for title, seconds in zip((f"{titles[0]} (control)", *titles[1:]), others, strict=True):
        row = {"comparison": name, "program": title, "links": rate, "step ms": 1e3 * statistics.median(seconds)}
        rows.append({**row, **ratio(seconds, first), "pairs": pairs})
    return rows


def matrix_flops(width: int = 1024, times: int = 7) -> float:
    """Return the FLOP/s of one core, from the median time of some matrix products."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.randn(width, width)
    times_taken: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        times_taken.append(time.perf_counter() - start)
    return 2 * width**3 / statistics.median(times_taken)


def sweep(rate: str, pairs: int, flops: float) -> dict[str, Any]:
    """Compare duplex with no duplex at a rate, and the side that is predicted to be faster with the faster side."""
    from shardwright.ir.overlap import ALL
    from shardwright.passes.analysis.simulation.overlap_report import overlaps
    from shardwright.passes.analysis.simulation.simulate import simulate_module

    comparison = COMPARISONS["duplex"]
    compiled = plans(comparison, rate, flops)
    simulated = [simulate_module(each.module)[0] for each in compiled.values()]
    whole, duplex = (each.seconds for each in simulated)
    (first, second, turns), measured = run_all(comparison, rate, pairs, compiled, profile=True)
    gain = ratio(first, turns)
    speed_up = gain.pop("ratio")
    chosen = "duplex" if duplex < whole else "no duplex"
    shown = [{"step": each.seconds, **_activities(overlaps(each, 0)[ALL, ALL])} for each in simulated]
    row = {"links": rate, "sent / computed": shown[0]["communication"] / shown[0]["compute"]}
    row |= {"no duplex ms": 1e3 * statistics.median(first), "control": ratio(second, first)["ratio"]}
    row |= {"speed-up": speed_up, **gain, "predicted": whole / duplex, "auto": chosen}
    row |= {"auto / better": min(speed_up if chosen == "duplex" else 1.0 / speed_up, 1.0), "load": os.getloadavg()[0]}
    for title, figures in (("measured", measured[1:]), ("simulated", shown)):
        row |= {f"{title}, {way}": _in_ms(each) for way, each in zip(("no duplex", "duplex"), figures, strict=True)}
    return row


def _in_ms(shown: Mapping[str, float]) -> str:
    """Format the seconds of step, computation, communication, overlapped and exposed communication in ms."""
    return " / ".join(f"{1e3 * value:.0f}" for value in shown.values())


def simulate_parts(rate: str) -> dict[str, Any]:
    """Return a row with the simulated steps of the comparison `parts` at a rate."""
    from shardwright.passes.analysis.simulation.simulate import simulate_module

    programs = plans(COMPARISONS["parts"], rate)
    seconds = {name: sum(stage.seconds for stage in simulate_module(each.module)) for name, each in programs.items()}
    whole = next(iter(seconds.values()))
    return {"links": rate} | {name: f"{1e3 * s:.1f} ({s / whole:.3f})" for name, s in seconds.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--rate", default="200mbit", help="sending rate of a host, e.g. 200mbit")
    parser.add_argument("--only", nargs="+", choices=sorted(COMPARISONS), default=list(COMPARISONS))
    parser.add_argument("--sweep", nargs="*", metavar="RATE", help=f"compare duplex at these rates ({' '.join(SWEEP)})")
    parser.add_argument("--simulate", nargs="*", metavar="RATE", help=f"simulate parts ({' '.join(SIMULATED)})")
    options = parsed(parser, pairs=2, only=list(COMPARISONS)[:1])
    if options.simulate is not None:
        publish("chunked_products", [simulate_parts(rate) for rate in options.simulate or SIMULATED])
        return
    if options.sweep is not None:
        flops = matrix_flops()
        publish("emulated_duplex", [progress(sweep(rate, options.pairs, flops)) for rate in options.sweep or SWEEP])
        return
    rows = [row for name in options.only for row in measure(name, options.rate, options.pairs)]
    publish("emulated", rows)
    title, xlabel = "Programs on emulated links", "step time / that of the first program"
    plot_ratios("emulated", rows, "{comparison}: {program}".format_map, title=title, xlabel=xlabel)


if __name__ == "__main__":
    _netns.start(worker, main)
