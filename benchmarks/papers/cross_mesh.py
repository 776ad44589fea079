"""
Compare transfers between meshes with the NIC bound, in the cases of "On Optimizing the Communication of Model
Parallelism" (Zhuang et al., MLSys 2023) and in random uneven cases.

    python benchmarks/papers/cross_mesh.py [--random N]
    python benchmarks/papers/cross_mesh.py --figures [N ...] [--micro-batches N] [--rates R ...] [--models NAME ...]
    python benchmarks/papers/cross_mesh.py --schedules [--models NAME ...] [--micro-batches N ...] [--rates R ...]

Each case is IR: a value on one mesh, a `pipe.transfer` to another mesh, and hosts with one NIC of 10 Gbit/s (the
paper's p3.8xlarge). `plan-transfers` plans it, and the simulator runs it with the order of tasks, chunks and latencies.
Figures are the simulated time divided by the NIC bound, which is the least time that the busiest NIC sends or receives;
planning is in processor seconds. The cases are Table 2 (`case1` to `case9`, 2 GiB), section 5.1.1 (`1 to HxG`, 1 GiB
from one GPU to G GPUs on each of H hosts) and random cases.

The paper shows its measurements only as plots (Figures 5, 6 and 8), so the tables compare our results with its text:
section 3.1 has the times of one slice to A hosts of B receivers (AB for send/recv, A with local all-gathers, and 2 with
global all-gathers), and section 5.1.2 has speed-ups over Alpa, which is here the better of the all-gathers in greedy
order. Another table has Table 1, the memory of a layer of GPT-3 on one of eight GPUs, counted in the IR.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import compress
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _cross_mesh_cases import OVER_ALPA, TABLE_2, Case, bound, host_mesh, outcome, paper_cases
from _plain_plans import pins_of
from _report import Rows, arguments, parsed, plot_curves, publish
from _steps import planned, prepared

from shardwright.dialects import train
from shardwright.dialects.compute import shape_of
from shardwright.dialects.placed import sharding_of
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.port_schedule import Order
from shardwright.ir.sharding import DimSharding, Sharding, local_shape
from shardwright.ir.submesh import on_mesh
from shardwright.ir.transfer_plan import Method, least_nic_time, nic_time, plan
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import step_views

ORDERS: tuple[Order, ...] = ("best", "exact", "naive", "greedy", "dispatch", "randomized", "dfs")
HIDDEN, LENGTH, SAMPLES = 12288, 1024, 2
"""Sizes of Table 1."""

TABLE_1 = {"parameters": 12 * HIDDEN**2 // 8, "optimizer states": 24 * HIDDEN**2 // 8}
"""Elements of a layer on one of eight GPUs in Table 1."""

METHODS: tuple[Method, ...] = ("send_recv", "local_allgather", "global_allgather")


def random_cases(count: int) -> Iterator[Case]:
    """Yield values with random, partly even boundaries, between meshes of up to four hosts of up to four GPUs."""
    random = Random(2023)
    for number in range(count):
        sizes = [(random.randint(1, 4), random.randint(1, 4)) for _ in range(2)]
        source, target = map(host_mesh, sizes, ("stage0", "stage1"))
        shape = *(random.choice((1000, 2048, 3072)) for _ in range(2)), random.randint(32, 512)
        sent, wanted = (_random_sharding(random, mesh, shape) for mesh in (source, target))
        yield Case(f"random{number}", shape, source, target, sent, wanted)


def _random_sharding(random: Random, mesh: Mesh, shape: Sequence[int]) -> Sharding:
    dims: list[DimSharding] = []
    free = [axis.name for axis in mesh.axes if axis.size > 1]
    for size in shape:
        axes = tuple(axis for axis in free if random.random() < 0.5)
        free = [axis for axis in free if axis not in axes]
        cuts = sorted(random.sample(range(1, size), mesh.parts(axes) - 1))
        uneven = axes and random.random() < 0.8
        dims.append(DimSharding(axes, (0, *cuts, size) if uneven else None))
    return Sharding(tuple(dims))


def order_rows() -> Rows:
    """Return a row for each case of the paper, with the results of each order of broadcasts."""
    rows = Rows()
    for case in paper_cases():
        least = bound(case)
        tried = {order: outcome(case, "broadcast", order) for order in ORDERS}
        row: dict[str, Any] = {"case": case.name, "slices": len(case.units()), "bound s": least}
        row |= {order: result.seconds / least for order, result in tried.items()}
        row |= {f"planning {order} s": tried[order].planning for order in ("best", "exact")}
        rows.append(row)
    return rows


def method_rows() -> Rows:
    """Return a row for each case of the paper, with the results of each method and of the paper."""
    rows = Rows()
    for case in paper_cases():
        least, best = bound(case), outcome(case, "broadcast", "best").seconds
        others = {method: outcome(case, method, "greedy").seconds for method in METHODS}
        hosts, gpus = case.target.axis("node").size, case.target.axis("gpu").size
        in_paper = {"send_recv": hosts * gpus, "local_allgather": hosts, "global_allgather": 2}
        row: dict[str, Any] = {"case": case.name, "broadcast": best / least}
        for method, seconds in others.items():
            row |= {method: seconds / least, f"{method}, paper": in_paper[method] if case.name not in TABLE_2 else ""}
        alpa = min(others[method] for method in METHODS[1:])
        rows.append(row | {"over Alpa": alpa / best, "over Alpa, paper": OVER_ALPA.get(case.name, "")})
    return rows


def table_1() -> Rows:
    """Return the memory of a layer of GPT-3 on each of eight GPUs, as the difference of two layers and one."""
    (one, two), rows = (_of_layers(layers) for layers in (1, 2)), Rows()
    for name, elements in TABLE_1.items():
        own = two[name] - one[name]
        rows.append({"": name, "elements": own, "paper's": elements, "ratio": own / elements})
    return rows


def _of_layers(layers: int) -> dict[str, int]:
    """Return the elements of parameters and states on each of eight tensor-parallel GPUs."""
    config = GPT2Config(layers=layers, width=HIDDEN, heads=96, vocabulary=1024, positions=LENGTH)
    search = SearchStrategyPass("fixed", pins=pins_of(("tp", ("tp",))), memory=2.0**50)
    cluster = on_mesh(find_cluster("h100-8x8"), Mesh.of(tp=8))
    step = prepared(gpt2_step(config, batch=SAMPLES, length=LENGTH))
    ((view, _),) = step_views(planned(step, cluster, search))
    counts = dict.fromkeys(TABLE_1, 0)
    for value in view.inputs:
        if value.role in (train.PARAM, train.STATE):
            shape = local_shape(shape_of(value.argument), sharding_of(value.argument), view.mesh, 0)
            counts["parameters" if value.role == train.PARAM else "optimizer states"] += math.prod(shape)
    return counts


def random_rows(count: int) -> Rows:
    """Return for each order its ratios to the bound, over all cases and over cases where `exact` meets the bound."""
    cases = [case for case in random_cases(count) if least_nic_time(case.units(), case.sites)]
    least = [bound(case) for case in cases]
    # The exact schedule meets the bound if NICs send and receive whole slices one after the other.
    met = [
        nic_time(plan(case.units(), case.sites, order="exact"), case.sites)
        <= math.ceil(least_nic_time(case.units(), case.sites))
        for case in cases
    ]
    rows = Rows()
    for order in ORDERS:
        tried = [outcome(case, "broadcast", order) for case in cases]
        ratios = [result.seconds / seconds for result, seconds in zip(tried, least, strict=True)]
        reached, planning = list(compress(ratios, met)), [result.planning for result in tried]
        row: dict[str, Any] = {"order": order, "cases": len(ratios), "median": statistics.median(ratios)}
        row |= {"90 % below": sorted(ratios)[int(0.9 * len(ratios))], "worst": max(ratios)}
        row |= {"exact meets bound": len(reached), "worst of these": max(reached, default=1.0)}
        row |= {"planning median s": statistics.median(planning), "planning worst s": max(planning), "ratios": ratios}
        rows.append(row)
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--figures", type=int, nargs="*", help="only redraw these of Figures 5 to 9, or all of them")
    parser.add_argument("--schedules", action="store_true", help="only compare schedules (cross_mesh_schedules.py)")
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="models of --schedules (default: all)")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[32])
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 0.5, 0.25])
    options = parsed(parser, random=2)
    if options.schedules:
        import_module("cross_mesh_schedules").publish_schedules(options.models, options.micro_batches, options.rates)
        return
    if options.figures is not None:
        numbers = options.figures or tuple(range(5, 10))
        figures = import_module("cross_mesh_figures")
        figures.publish_figures(options.micro_batches[0], options.rates, options.models, numbers)
        return
    # Import the exact solver first: its import takes half a second or more, which would count as planning.
    import_module("ortools.sat.python.cp_model")
    publish("cross_mesh_table_1", table_1())
    publish("cross_mesh_orders", order_rows())
    publish("cross_mesh_methods", method_rows())
    if options.random:
        rows = random_rows(options.random)
        publish("cross_mesh_random", rows)
        series = {row["order"]: list(enumerate(sorted(row["ratios"]), 1)) for row in rows}
        title, ylabel = "Transfers between random meshes", "simulated time / NIC bound"
        plot_curves("cross_mesh", series, title=title, xlabel="random cases, by ratio", ylabel=ylabel)


if __name__ == "__main__":
    main()
