"""
Measure duplex, products in parts, schedules and balanced shares on emulated links, each against alternatives.

    sudo python benchmarks/emulated.py [--pairs 40] [--rate 200mbit] [--only duplex orders parts schedules shares ...]
    sudo python benchmarks/emulated.py --sweep [RATE ...] [--pairs 20]

Each host is a network namespace whose sending rate is limited to RATE (`_netns`). The programs of one comparison run in
the same processes and take their steps in random order, so that noise of the machine affects them equally. The ratio is
the median of the paired ratios to the first program, with a 95 % bootstrap interval. The first program runs twice, as a
control. `--sweep` compares duplex at several rates; its cluster file has the FLOP/s of a matrix product that is timed
first. `auto` is the side that the simulator predicts to be the faster, and `auto / better` compares it with the side
that is. Step, computation, communication, overlapped and exposed communication are given in ms, as simulated and as
measured (by `StepProfile` at the end of the run, on the rank that computes longest). Without root, iproute2 or network
namespaces the script is skipped with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _netns
from _report import interval, parsed, plot_intervals, publish, skip

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step

if TYPE_CHECKING:
    from shardwright.api.compile import CompiledStep
    from shardwright.passes.analysis.simulation.results import Simulation

_GPT2 = GPT2Config(layers=4, width=256, heads=4, vocabulary=1024, positions=64)
STEPS: dict[str, Callable[[], TrainingStep]] = {
    "gpt2": lambda: gpt2_step(_GPT2, batch=16, length=64),
    "rows": lambda: mlp_step((256, 256, 256, 256), batch=4096),
    "mlp": lambda: mlp_step((256, 512, 512, 64), batch=8192),
    "blocks": lambda: mlp_step((256, 1024, 256, 1024, 16), batch=1024),
}
_TENSOR_PARALLEL, _DATA_PARALLEL = (f"search-strategy{{algorithm=fixed pins={preset}}}" for preset in ("tp", "dp"))


@dataclass(frozen=True)
class Comparison:
    """
    Programs of one step on one emulated cluster.

    Args:
        pipelines: pass pipelines by name; the others are compared with the first.
        shares: share of a core that a rank gets, by rank.
        speeds: FLOP/s of each rank in the planned cluster, relative to a core.
        fragment: shortest seconds of a pipeline's fragment. Sleeping fills them, so that other processes matter less.
    """

    step: str
    pipelines: Mapping[str, str]
    ranks: int = 2
    shares: Mapping[int, float] = field(default_factory=dict[int, float])
    speeds: Sequence[float] = (1.0, 1.0)
    fragment: float = 0.0


def _pipeline(schedule: str, count: int = 2) -> str:
    program = f"program{{mode=pipeline parts=8 schedule={schedule}}}"
    return f"prepare,partition-stages{{stages={count}}},search-strategy,{program},finish"


_SPLIT = f"prepare,{_TENSOR_PARALLEL}"
_WHOLE = f"{_SPLIT},program,finish"
_PARTS = {
    "whole products": _WHOLE,
    "in 2 parts": f"{_SPLIT},communicate,chunk-collectives{{parts=2}},overlap,join-updates,finish",
    "in 4 parts": f"{_SPLIT},communicate,chunk-collectives{{parts=4}},overlap,join-updates,finish",
    "by cost": f"{_SPLIT},program{{chunked=true}},finish",
}
"""Tensor parallelism with whole products, and with products whose reductions are in parts."""

COMPARISONS: dict[str, Comparison] = {
    "duplex": Comparison(
        "gpt2",
        {
            "no duplex": _WHOLE,
            "duplex": f"{_SPLIT},program{{mode=duplex parts=2}},finish",
        },
    ),
    "orders": Comparison(
        "gpt2",
        {
            "no duplex": _WHOLE,
            **{
                f"duplex, {parts} parts, {order}": f"{_SPLIT},split-batch{{parts={parts} unrolled=true}},communicate,"
                f"duplex{{order={order}}},overlap,join-updates,finish"
                for parts, order in ((2, "phases"), (2, "list"), (4, "list"))
            },
        },
    ),
    "parts": Comparison("gpt2", _PARTS),
    "parts of blocks": Comparison("blocks", _PARTS),
    "schedules": Comparison("gpt2", {name: _pipeline(name) for name in ("gpipe", "1f1b", "eager-1f1b")}),
    "three stages": Comparison(
        "rows",
        {name: _pipeline(name, 3) for name in ("1f1b", "eager-1f1b", "zero-bubble")},
        ranks=3,
        speeds=(1.0, 1.0, 1.0),
        fragment=0.08,
    ),
    "shares": Comparison(
        "mlp",
        {
            "even": f"prepare,{_DATA_PARALLEL},program,finish",
            "balanced": f"prepare,{_DATA_PARALLEL},balance-ratios,program,finish",
        },
        shares={1: 0.4},
        speeds=(1.0, 0.4),
    ),
}


FLOPS = 25e9
"""Default FLOP/s of a core, if it is not measured."""

SWEEP = ("25mbit", "50mbit", "100mbit", "150mbit", "200mbit", "300mbit", "400mbit", "800mbit")


def emulated_cluster(comparison: Comparison, rate: str, flops: float = FLOPS) -> Cluster:
    """Return the emulated cluster."""
    from shardwright.ir.cluster_file import parse_cluster

    beta = 8.0 / (float(rate.removesuffix("mbit")) * 1e6)
    places = "".join(
        f"[device.d{i}]\nflops = {{ float32 = {flops * speed} }}\nmemory_bandwidth = {flops / 5 * speed}\n"
        f'memory = "4GiB"\nlaunch = {10e-6 / speed}\n[[place]]\ndevice = "d{i}"\ncount = 1\n'
        for i, speed in enumerate(comparison.speeds)
    )
    text = f'version = 1\nname = "emulated"\nmesh = ["gpu={comparison.ranks}"]\n'
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


def worker(folder: Path) -> None:
    """Run one rank: step all programs of the folder in random order. Rank 0 writes the seconds."""
    import torch
    import torch.distributed as dist
    from _in_turns import seconds_by_round

    from shardwright.lowering.codegen.load_program import load_text
    from shardwright.runtime.executor import Executor
    from shardwright.runtime.stages import Stage, connect

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    asked = json.loads((folder / "asked.json").read_text())
    step = STEPS[asked["step"]]()
    batch = {str(i): item for i, item in enumerate(step.batch)}
    sides: list[Executor] = []
    for name, text in asked["programs"]:
        stages = [Stage(*stage) for stage in load_text(text, name)]
        if asked["fragment"]:
            _lengthen(stages, asked["fragment"])
        sides.append(Executor(stages, connect(stages, torch.device("cpu"))))
        sides[-1].initialize(step.model, 0)
    rows = seconds_by_round([partial(side.step, batch) for side in sides], asked["pairs"])
    measured = [_measured(side, batch) for side in sides] if asked["profile"] else []
    if dist.get_rank() == 0:
        (folder / "seconds.json").write_text(json.dumps({"rows": rows, "measured": measured}))
    dist.destroy_process_group()


def _measured(executor: Any, batch: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds by activity in the median of seven steps, on the rank that computes longest."""
    from shardwright.api.step_profile import profiled
    from shardwright.ir.overlap import ALL

    with profiled(executor, compiled=False) as profile:
        for _ in range(7):
            executor.step(batch)
    totals = max((each[ALL, ALL] for each in profile.overlaps.values()), key=lambda each: each.compute)
    activities = {name: getattr(totals, name) for name in ("compute", "communication", "overlapped", "exposed")}
    return {"step": max(each.seconds for each in profile.middle), **activities}


def _lengthen(stages: Sequence[Any], seconds: float) -> None:
    """Wrap every fragment of a program so that it takes at least `seconds`."""
    names = stages[0].step.__globals__
    for name, function in list(names.items()):
        if re.fullmatch(r"(forward|backward|weights)\d+", name):

            def longer(*given: Any, run: Callable[..., Any] = function) -> Any:
                start = time.perf_counter()
                results = run(*given)
                time.sleep(max(0.0, seconds - (time.perf_counter() - start)))
                return results

            names[name] = longer


def measure(name: str, rate: str, pairs: int) -> list[dict[str, Any]]:
    """Return a row for each program of one comparison."""
    comparison = COMPARISONS[name]
    titles, rows, _ = seconds(comparison, rate, pairs, plans(comparison, rate))
    return [_row(name, rate, rows, index, title) for index, title in enumerate(titles) if index]


def seconds(
    comparison: Comparison, rate: str, pairs: int, made: Mapping[str, CompiledStep], *, profile: bool = False
) -> tuple[list[str], list[list[float]], list[dict[str, float]]]:
    """Return the names of the programs (the first one twice), the seconds of each in each round, and their profiles."""
    with tempfile.TemporaryDirectory() as place, _netns.hosts([rate] * comparison.ranks) as names:
        folder = Path(place)
        texts = [(name, plan.program) for name, plan in made.items()]
        listed = [texts[0], *texts]
        request = {
            "step": comparison.step,
            "programs": listed,
            "pairs": pairs,
            "fragment": comparison.fragment,
            "profile": profile,
        }
        (folder / "asked.json").write_text(json.dumps(request))
        arguments = [os.fspath(Path(__file__).resolve()), "--worker", place]
        _netns.launch(names, arguments, shares=comparison.shares)
        results = json.loads((folder / "seconds.json").read_text())
        return [title for title, _ in listed], results["rows"], results["measured"]


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


def sweep(rates: Sequence[str], pairs: int) -> list[dict[str, Any]]:
    """Compare duplex with no duplex at each rate, and the side that is predicted to be faster with the faster side."""
    from shardwright.ir.overlap import ALL
    from shardwright.passes.analysis.simulation.overlap_report import overlaps
    from shardwright.passes.analysis.simulation.simulate import simulate_module

    comparison, flops = COMPARISONS["duplex"], matrix_flops()
    rows: list[dict[str, Any]] = []
    for rate in rates:
        compiled = plans(comparison, rate, flops)
        simulated = [simulate_module(each.module)[0] for each in compiled.values()]
        whole, duplex = (each.seconds for each in simulated)
        work = overlaps(simulated[0], 0)[ALL, ALL]
        _, took, measured = seconds(comparison, rate, pairs, compiled, profile=True)
        ratios = [first / turns for first, _, turns in took]
        ratio, (low, high) = statistics.median(ratios), interval(ratios)
        chosen = "duplex" if duplex < whole else "no duplex"
        rows.append(
            {
                "links": rate,
                "sent / computed": work.communication / work.compute,
                "no duplex ms": 1e3 * statistics.median(row[0] for row in took),
                "control": statistics.median(second / first for first, second, _ in took),
                "speed-up": ratio,
                "low": low,
                "high": high,
                "predicted": whole / duplex,
                "auto": chosen,
                "auto / better": min(ratio, 1.0) if chosen == "duplex" else min(1.0 / ratio, 1.0),
                "load": os.getloadavg()[0],
                "measured, no duplex": _in_ms(measured[1]),
                "measured, duplex": _in_ms(measured[2]),
                "simulated, no duplex": _of_simulation(simulated[0]),
                "simulated, duplex": _of_simulation(simulated[1]),
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _of_simulation(found: Simulation) -> str:
    from shardwright.ir.overlap import ALL
    from shardwright.passes.analysis.simulation.overlap_report import overlaps

    totals = overlaps(found, 0)[ALL, ALL]
    shown = {name: getattr(totals, name) for name in ("compute", "communication", "overlapped", "exposed")}
    return _in_ms({"step": found.seconds, **shown})


def _in_ms(found: Mapping[str, float]) -> str:
    """Format the seconds of step, computation, communication, overlapped and exposed communication in ms."""
    return " / ".join(f"{1e3 * value:.0f}" for value in found.values())


def _row(name: str, rate: str, rows: Sequence[Sequence[float]], index: int, title: str) -> dict[str, Any]:
    """Return a row that compares the program at `index` with the program at 0; those at 0 and 1 are the same."""
    ratios = [row[index] / row[0] for row in rows]
    low, high = interval(ratios)
    return {
        "comparison": name,
        "program": title + (" (control)" if index == 1 else ""),
        "links": rate,
        "step ms": 1e3 * statistics.median(row[index] for row in rows),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "pairs": len(rows),
    }


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--rate", default="200mbit", help="sending rate of a host, e.g. 200mbit")
    parser.add_argument("--only", nargs="+", choices=sorted(COMPARISONS), default=list(COMPARISONS))
    parser.add_argument("--sweep", nargs="*", metavar="RATE", help=f"compare duplex at these rates ({' '.join(SWEEP)})")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parsed(parser, pairs=2, only=list(COMPARISONS)[:1])
    if options.worker is not None:
        worker(options.worker)
        return
    try:
        if options.sweep is not None:
            rates = options.sweep or SWEEP
            command = f"python benchmarks/emulated.py --sweep {' '.join(rates)} --pairs {options.pairs}"
            publish("emulated_duplex", sweep(rates, options.pairs), command=command)
            return
        rows = [row for name in options.only for row in measure(name, options.rate, options.pairs)]
    except _netns.Unavailable as error:
        skip(error)
    publish("emulated", rows, command=f"python benchmarks/emulated.py --pairs {options.pairs} --rate {options.rate}")
    labels = [f"{row['comparison']}: {row['program']}" for row in rows]
    bounds = [(row["low"], row["high"]) for row in rows]
    plot_intervals("emulated", labels, [row["ratio"] for row in rows], bounds, xlabel="step time, to the first")


if __name__ == "__main__":
    main()
