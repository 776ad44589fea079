"""
How near transfers between meshes come to what NICs allow, in the cases of "On Optimizing the Communication of Model
Parallelism" (Zhuang et al., MLSys 2023) and in random uneven ones.

    python benchmarks/papers/cross_mesh.py [--random N] [--data DIR]

Every case is IR: a value on one mesh, a `pipe.transfer` to the other, hosts with one NIC of 10 Gbit/s (the paper's
p3.8xlarge). `plan-transfers` plans it and the simulator carries it out, the order of tasks, chunks and latencies
included. Figures are that time as a multiple of the NIC bound, which is what the busiest NIC must send or receive at
least; planning is in processor seconds. The cases are those of Table 2 (`case1` to `case9`, 2 GiB), those of section
5.1.1 (`1 to HxG`, 1 GiB from one GPU to G on each of H hosts) and random ones.

The paper has its measurements as plots alone (Figures 5, 6 and 8). So beside ours stand the times of its section 3.1
for one slice to A hosts of B receivers: AB for send/recv, A with local all-gathers, 2 with global ones, which it does
not overlap with what is sent; and what section 5.1.2 says of the speed-up over Alpa, here that over the better of the
all-gathers in greedy order. With `--data` the bounds are compared with those of DIR/cross_mesh_cases.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _report import plot_lines, publish
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.mesh_ops import ClusterOp
from shardwright.dialects.text import parse_module
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.port_schedule import Order, _schedule
from shardwright.ir.sharding import DimSharding, Sharding
from shardwright.ir.submesh import subcluster
from shardwright.ir.topology import Host
from shardwright.ir.transfer_plan import Method, Placed, Sites, least_nic_time, nic_time, plan, units
from shardwright.ir.unit_tasks import Grid
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.plan_transfers import PlanTransfersPass
from shardwright.tools.ir_input import full_context

ORDERS: tuple[Order, ...] = ("best", "exact", "naive", "greedy", "dispatch", "randomized", "dfs")
METHODS: tuple[Method, ...] = ("send_recv", "local_allgather", "global_allgather")
TABLE_2 = {
    "case1": ("S0 R R", "S0 R R", (2, 4), (2, 4)),
    "case2": ("R R R", "S0 R R", (2, 4), (2, 4)),
    "case3": ("R S0 R", "S0 R R", (2, 4), (2, 4)),
    "case4": ("R S01 R", "S01 R R", (2, 4), (2, 4)),
    "case5": ("S1 R R", "S0 R R", (2, 4), (2, 4)),
    "case6": ("S0 R R", "S0 R R", (2, 4), (3, 4)),
    "case7": ("S1 R R", "R R R", (1, 4), (2, 4)),
    "case8": ("R R R", "R R R", (2, 3), (3, 2)),
    "case9": ("R S0 R", "R R S0", (2, 4), (2, 4)),
}
"""Table 2: the shardings and meshes of the sender and the receiver."""

SHAPE, PADDED = (1024, 1024, 512), (3072, 1024, 170)
"""The tensor of section 5.1.2, and as its code has it in case 6."""

ONE_TO_MANY = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 2), (4, 2))
"""Section 5.1.1: the hosts that receive, and the GPUs of each."""

OVER_ALPA = dict.fromkeys(("case1", "case2", "case5", "case6"), "near 1") | {
    "case3": "3 to 10",
    "case4": "3 to 10",
    "case7": "up to 2.5",
    "case8": "up to 2.5",
    "case9": "3 to 10",
}
"""Section 5.1.2, in words."""

BYTES = 4
"""Of an int32, the dtype of the paper's benchmark."""


@dataclass(frozen=True)
class Case:
    """A value that goes from one mesh to another; a row of either is a host."""

    name: str
    shape: tuple[int, ...]
    source: Mesh
    target: Mesh
    sent: Sharding
    wanted: Sharding

    @property
    def ranks(self) -> tuple[range, range]:
        """The ranks of both meshes."""
        count = self.source.device_count
        return range(count), range(count, count + self.target.device_count)

    @property
    def sites(self) -> Sites:
        """Where ranks sit."""
        rows = [(mesh, ranks) for mesh, ranks in zip((self.source, self.target), self.ranks, strict=True)]
        hosts = [(m.name, i // m.axis("gpu").size) for m, ranks in rows for i in range(len(ranks))]
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        return Sites({rank: numbers[host] for rank, host in enumerate(hosts)})

    def units(self) -> list[Any]:
        """The slices that cross."""
        here, there = (Grid.of(mesh, ranks) for mesh, ranks in zip((self.source, self.target), self.ranks, strict=True))
        return units(self.shape, Placed(here, self.sent), Placed(there, self.wanted))

    def cluster(self, bandwidth: float | None = None) -> Cluster:
        """The paper's hosts, as many as the meshes have rows; with NICs of another bandwidth if one is given."""
        paper = find_cluster("cross-mesh-p3-4x4")
        assert paper.topology is not None
        hosts = tuple(
            Host(mesh.axis("gpu").size, "nvlink", "ethernet", count=mesh.axis("node").size)
            for mesh in (self.source, self.target)
        )
        count = self.source.device_count + self.target.device_count
        levels = tuple(
            replace(level, bandwidth=bandwidth) if bandwidth and level.name == "ethernet" else level
            for level in paper.topology.levels
        )
        topology = type(paper.topology)(levels, hosts)
        return Cluster("p3", Mesh.of(gpu=count), paper.devices, (0,) * count, (), topology=topology)

    def module(self, bandwidth: float | None = None) -> ModuleOp:
        """The transfer as IR, without a plan."""
        kind = f"tensor<{'x'.join(map(str, self.shape))}xi32>"
        mine, theirs = (list(ranks) for ranks in self.ranks)
        module = parse_module(
            full_context(),
            f"""
            spmd.mesh @mesh = <["gpu"={len(mine) + len(theirs)}]>
            spmd.mesh @stage0 = <{_axes(self.source)}> on {mine}
            spmd.mesh @stage1 = <{_axes(self.target)}> on {theirs}
            func.func @step(%x: {kind} {{pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, {self.sent}>}})
                -> {kind} attributes {{pipe.stages = ["stage0", "stage1"]}} {{
              %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, {self.wanted}> : {kind}
              func.return %h : {kind}
            }}
            """,
            self.name,
        )
        whole = self.cluster(bandwidth)
        first, second = (ranks[0] for ranks in self.ranks)
        parts = subcluster(whole, self.source, first), subcluster(whole, self.target, second)
        module.body.block.add_ops(ClusterOp(each) for each in (whole, *parts))
        module.verify()
        return module


def _axes(mesh: Mesh) -> str:
    return "[" + ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes) + "]"


def _mesh(shape: tuple[int, int], name: str) -> Mesh:
    return Mesh(Mesh.of(node=shape[0], gpu=shape[1]).axes, name)


def _of_spec(spec: str) -> Sharding:
    """The paper's notation: `S01` is a dim split over both axes of a mesh."""
    return Sharding.of([[("node", "gpu")[int(axis)] for axis in entry[1:]] for entry in spec.split()])


def paper_cases() -> Iterator[Case]:
    """The nine of Table 2, and the seven of section 5.1.1."""
    for name, (sent, wanted, source, target) in TABLE_2.items():
        shape = PADDED if name == "case6" else SHAPE
        yield Case(name, shape, _mesh(source, "stage0"), _mesh(target, "stage1"), _of_spec(sent), _of_spec(wanted))
    for hosts, gpus in ONE_TO_MANY:
        meshes = _mesh((1, 1), "stage0"), _mesh((hosts, gpus), "stage1")
        yield Case(f"1 to {hosts}x{gpus}", (2**28,), *meshes, _of_spec("R"), _of_spec("R"))


def scaled(case: Case, size: float) -> Case:
    """A case of three dims with about so many bytes."""
    first, second = (each // 8 for each in case.shape[:2])
    return replace(case, shape=(first, second, max(1, round(size / BYTES / first / second))))


def random_cases(count: int) -> Iterator[Case]:
    """Values split at random boundaries, some of them even, between meshes of up to four hosts of up to four GPUs."""
    random = Random(2023)
    for number in range(count):
        source, target = (_mesh((random.randint(1, 4), random.randint(1, 4)), name) for name in ("stage0", "stage1"))
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


@dataclass(frozen=True)
class Outcome:
    """A planned case: simulated seconds, and processor seconds that planning took."""

    seconds: float
    planning: float


def outcome(case: Case, method: Method, order: Order, bandwidth: float | None = None) -> Outcome:
    """What the simulator says of a plan, with the paper's NICs or with others."""
    module = case.module(bandwidth)
    _schedule.cache_clear()
    begin = process_time()
    PlanTransfersPass(method=method, order=order).apply(Context(), module)
    planning = process_time() - begin
    module.verify()
    (run,) = simulate_module(module)[0].execution.traffic
    return Outcome(run.end - run.start, planning)


def bound(case: Case) -> float:
    """The seconds of the NIC bound."""
    topology = case.cluster().topology
    assert topology is not None
    nic = next(level for level in topology.levels if level.name == "ethernet")
    return least_nic_time(case.units(), case.sites) * BYTES / nic.bandwidth


def reaches(case: Case) -> bool:
    """Whether the exact schedule meets the bound, where NICs take whole slices in turn."""
    given = case.units()
    return nic_time(plan(given, case.sites, order="exact"), case.sites) <= math.ceil(least_nic_time(given, case.sites))


def order_rows(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per case of the paper: how each order does, as broadcasts."""
    found: list[dict[str, Any]] = []
    for case in paper_cases():
        least = bound(case)
        tried = {order: outcome(case, "broadcast", order) for order in ORDERS}
        row: dict[str, Any] = {"case": case.name, "slices": len(case.units()), "bound s": least}
        if known:
            row["bound of the data s"] = known.get(case.name, {}).get("nic_lower_bound_s")
        row |= {order: each.seconds / least for order, each in tried.items()}
        row |= {f"planning {order} s": tried[order].planning for order in ("best", "exact")}
        found.append(row)
    return found


def method_rows() -> list[dict[str, Any]]:
    """A row per case of the paper: how each way of sending a slice does, beside what the paper says."""
    found: list[dict[str, Any]] = []
    for case in paper_cases():
        least = bound(case)
        others = {method: outcome(case, method, "greedy").seconds for method in METHODS}
        best = outcome(case, "broadcast", "best").seconds
        hosts, gpus = case.target.axis("node").size, case.target.axis("gpu").size
        in_paper = {"send_recv": hosts * gpus, "local_allgather": hosts, "global_allgather": 2}
        row: dict[str, Any] = {"case": case.name, "broadcast": best / least}
        for method, seconds in others.items():
            row[method] = seconds / least
            row[f"{method}, paper"] = in_paper[method] if case.name not in TABLE_2 else ""
        alpa = min(others[method] for method in METHODS[1:])
        found.append(row | {"over Alpa": alpa / best, "over Alpa, paper": OVER_ALPA.get(case.name, "")})
    return found


def random_rows(count: int) -> list[dict[str, Any]]:
    """A row per order: its ratios to the bound over all random cases, and those where the exact schedule meets it."""
    cases = [case for case in random_cases(count) if least_nic_time(case.units(), case.sites)]
    least = [bound(case) for case in cases]
    met = [reaches(case) for case in cases]
    found: list[dict[str, Any]] = []
    for order in ORDERS:
        tried = [outcome(case, "broadcast", order) for case in cases]
        ratios = [each.seconds / seconds for each, seconds in zip(tried, least, strict=True)]
        reached = [ratio for ratio, exact in zip(ratios, met, strict=True) if exact]
        planning = [each.planning for each in tried]
        row: dict[str, Any] = {"order": order, "cases": len(ratios), "median": statistics.median(ratios)}
        row |= {"90 % below": sorted(ratios)[int(0.9 * len(ratios))], "worst": max(ratios)}
        row |= {"exact meets bound": len(reached), "worst of these": max(reached, default=1.0)}
        row |= {"planning median s": statistics.median(planning), "planning worst s": max(planning), "ratios": ratios}
        found.append(row)
    return found


def main() -> None:
    """Print the tables, write JSON and a plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    known = json.loads((options.data / "cross_mesh_cases.json").read_text())["cases"] if options.data else {}
    command = f"python benchmarks/papers/cross_mesh.py --random {options.random}"
    # What solves exactly takes half a second or more to import, once in a process.
    import_module("ortools.sat.python.cp_model")
    publish("cross_mesh_orders", order_rows(known), command=command)
    publish("cross_mesh_methods", method_rows(), command=command)
    if options.random:
        rows = random_rows(options.random)
        publish("cross_mesh_random", rows, command=command, hidden=("ratios",))
        series = {row["order"]: sorted(row["ratios"]) for row in rows}
        plot_lines("cross_mesh", series, xlabel="random cases, by ratio", ylabel="simulated time / NIC bound")


if __name__ == "__main__":
    main()
