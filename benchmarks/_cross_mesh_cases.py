"""
The cases of "On Optimizing the Communication of Model Parallelism" (Zhuang et al., MLSys 2023) as IR: a value on one
mesh and a `pipe.transfer` to another. Hosts have one NIC of 10 Gbit/s (the paper's p3.8xlarge) or of another bandwidth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.mesh_ops import ClusterOp
from shardwright.dialects.text import parse_module
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.port_schedule import Order, schedule
from shardwright.ir.sharding import Sharding
from shardwright.ir.submesh import subcluster
from shardwright.ir.topology import Host
from shardwright.ir.transfer_plan import Method, Placed, Sites, least_nic_time, plan, units
from shardwright.ir.unit_tasks import Grid
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.plan_transfers import PlanTransfersPass
from shardwright.tools.ir_input import full_context

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
"""Table 2: the shardings of sender and receiver, and their meshes."""

SHAPE, PADDED = (1024, 1024, 512), (3072, 1024, 170)
"""The tensor of section 5.1.2, and the shape that the paper's code uses in case 6."""

ONE_TO_MANY = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 2), (4, 2))
"""Section 5.1.1: numbers of receiving hosts and of their GPUs."""

OVER_ALPA = dict.fromkeys(("case1", "case2", "case5", "case6"), "near 1") | {
    "case3": "3 to 10",
    "case4": "3 to 10",
    "case7": "up to 2.5",
    "case8": "up to 2.5",
    "case9": "3 to 10",
}
"""Speed-ups over Alpa that section 5.1.2 states in words."""

BYTES = 4
"""Bytes of an int32, the dtype of the paper's benchmark."""


@dataclass(frozen=True)
class Case:
    """A value that is sent from one mesh to another. A row of a mesh is a host."""

    name: str
    shape: tuple[int, ...]
    source: Mesh
    target: Mesh
    sent: Sharding
    wanted: Sharding

    @property
    def ranks(self) -> tuple[range, range]:
        count = self.source.device_count
        return range(count), range(count, count + self.target.device_count)

    @property
    def sites(self) -> Sites:
        """Return the hosts of the ranks."""
        rows = [(mesh, ranks) for mesh, ranks in zip((self.source, self.target), self.ranks, strict=True)]
        hosts = [(m.name, i // m.axis("gpu").size) for m, ranks in rows for i in range(len(ranks))]
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        return Sites({rank: numbers[host] for rank, host in enumerate(hosts)})

    def units(self) -> list[Any]:
        """Return the slices that cross the meshes."""
        here, there = (Grid.of(mesh, ranks) for mesh, ranks in zip((self.source, self.target), self.ranks, strict=True))
        return units(self.shape, Placed(here, self.sent), Placed(there, self.wanted))

    def cluster(self, bandwidth: float | None = None) -> Cluster:
        """Return as many of the paper's hosts as the meshes have rows, with NICs of `bandwidth` bytes/s if given."""
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
        """Return the transfer as IR, without a plan."""
        kind = f"tensor<{'x'.join(map(str, self.shape))}xi32>"
        senders, receivers = (list(ranks) for ranks in self.ranks)
        first, second = (
            ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes) for mesh in (self.source, self.target)
        )
        module = parse_module(
            full_context(),
            f"""
            spmd.mesh @mesh = <["gpu"={len(senders) + len(receivers)}]>
            spmd.mesh @stage0 = <[{first}]> on {senders}
            spmd.mesh @stage1 = <[{second}]> on {receivers}
            func.func @step(%x: {kind} {{pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, {self.sent}>}})
                -> {kind} attributes {{pipe.stages = ["stage0", "stage1"]}} {{
              %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, {self.wanted}> : {kind}
              func.return %h : {kind}
            }}
            """,
            self.name,
        )
        whole = self.cluster(bandwidth)
        source, target = self.ranks
        parts = subcluster(whole, self.source, source), subcluster(whole, self.target, target)
        module.body.block.add_ops(ClusterOp(part) for part in (whole, *parts))
        module.verify()
        return module


def host_mesh(shape: tuple[int, int], name: str) -> Mesh:
    return Mesh(Mesh.of(node=shape[0], gpu=shape[1]).axes, name)


def _of_spec(spec: str) -> Sharding:
    """Parse the paper's notation, for instance `S01`: a dim that is split over both axes of a mesh."""
    return Sharding.of([[("node", "gpu")[int(axis)] for axis in entry[1:]] for entry in spec.split()])


def paper_cases() -> Iterator[Case]:
    """Yield the nine cases of Table 2 and the seven cases of section 5.1.1."""
    for name, (sent, wanted, source, target) in TABLE_2.items():
        shape = PADDED if name == "case6" else SHAPE
        meshes = host_mesh(source, "stage0"), host_mesh(target, "stage1")
        yield Case(name, shape, *meshes, _of_spec(sent), _of_spec(wanted))
    yield from (to_hosts(hosts, gpus) for hosts, gpus in ONE_TO_MANY)


def to_hosts(hosts: int, gpus: int) -> Case:
    """Return the case that sends a gibibyte from one GPU to `gpus` GPUs on each of `hosts` hosts."""
    meshes = host_mesh((1, 1), "stage0"), host_mesh((hosts, gpus), "stage1")
    return Case(f"1 to {hosts}x{gpus}", (2**28,), *meshes, _of_spec("R"), _of_spec("R"))


def scaled(case: Case, size: float) -> Case:
    """Return a case of three dims with about `size` bytes."""
    first, second = (length // 8 for length in case.shape[:2])
    return replace(case, shape=(first, second, max(1, round(size / BYTES / first / second))))


@dataclass(frozen=True)
class Outcome:
    """Simulated seconds of a planned case, and processor seconds of planning it."""

    seconds: float
    planning: float


def outcome(case: Case, method: Method, order: Order, bandwidth: float | None = None) -> Outcome:
    """Plan and simulate a case, with the paper's NICs or with NICs of `bandwidth` bytes/s."""
    module = case.module(bandwidth)
    schedule.cache_clear()
    begin = process_time()
    PlanTransfersPass(method=method, order=order).apply(Context(), module)
    planning = process_time() - begin
    module.verify()
    (run,) = simulate_module(module)[0].execution.traffic
    return Outcome(run.end - run.start, planning)


def bound(case: Case) -> float:
    """Return the NIC bound in seconds."""
    topology = case.cluster().topology
    assert topology is not None
    nic = next(level for level in topology.levels if level.name == "ethernet")
    return least_nic_time(case.units(), case.sites) * BYTES / nic.bandwidth


def as_alpa(case: Case) -> tuple[float, float]:
    """
    Return the seconds of a case as Alpa runs it: sends of the pieces of a slice, and then an all-gather of the
    receivers.

    All-gathers are of the faster kind, and senders are chosen by their load. First, every GPU runs its sends and
    all-gathers in the order of the slices; second, a slice starts when the slice before it is complete.
    """
    return min(_as_alpa(case, crosses=crosses) for crosses in (False, True))


def _as_alpa(case: Case, *, crosses: bool) -> tuple[float, float]:
    """Return the seconds of a case with all-gathers inside of hosts, or of all receivers (`crosses`)."""
    topology, hosts = case.cluster().topology, case.sites.hosts
    assert topology is not None
    nic, link = (next(it.bandwidth for it in topology.levels if it.name == name) for name in ("ethernet", "nvlink"))
    free: defaultdict[tuple[str, int], float] = defaultdict(float)
    # A broadcast has one task for each slice, so its tasks are the slices with their senders.
    tasks = sorted(plan(case.units(), case.sites, "broadcast", "greedy"), key=lambda task: task.receivers)
    total = 0.0
    for task in tasks:
        size, receivers = task.elements * BYTES, len(task.receivers)
        targets = {hosts[rank] for rank in task.receivers}
        is_ring = crosses and len(targets) > 1
        send = size * (1 if is_ring else len(targets)) / nic
        inside = receivers // len(targets)
        gather = size * (receivers - 1) / receivers / nic if is_ring else size * (inside - 1) / inside / link
        sending = [("gpu", task.sender), ("out", hosts[task.sender])]
        receiving = [("gpu", rank) for rank in task.receivers] + [("in", host) for host in targets]
        start = max(free[port] for port in (*sending, *receiving))
        free |= dict.fromkeys(sending, start + send) | dict.fromkeys(receiving, start + send + gather)
        total += send + gather
    return max(free.values()), total
