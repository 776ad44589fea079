"""
The cases of "On Optimizing the Communication of Model Parallelism" (Zhuang et al., MLSys 2023) as IR: a value on one
mesh, a `pipe.transfer` to the other, on hosts with one NIC of 10 Gbit/s (the paper's p3.8xlarge), or of another
bandwidth.
"""

from __future__ import annotations

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
from shardwright.ir.transfer_plan import Method, Placed, Sites, least_nic_time, units
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
        source, target = self.ranks
        parts = subcluster(whole, self.source, source), subcluster(whole, self.target, target)
        module.body.block.add_ops(ClusterOp(each) for each in (whole, *parts))
        module.verify()
        return module


def _axes(mesh: Mesh) -> str:
    return "[" + ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes) + "]"


def host_mesh(shape: tuple[int, int], name: str) -> Mesh:
    return Mesh(Mesh.of(node=shape[0], gpu=shape[1]).axes, name)


def _of_spec(spec: str) -> Sharding:
    """The paper's notation: `S01` is a dim split over both axes of a mesh."""
    return Sharding.of([[("node", "gpu")[int(axis)] for axis in entry[1:]] for entry in spec.split()])


def paper_cases() -> Iterator[Case]:
    """The nine of Table 2, and the seven of section 5.1.1."""
    for name, (sent, wanted, source, target) in TABLE_2.items():
        shape = PADDED if name == "case6" else SHAPE
        meshes = host_mesh(source, "stage0"), host_mesh(target, "stage1")
        yield Case(name, shape, *meshes, _of_spec(sent), _of_spec(wanted))
    yield from (to_hosts(hosts, gpus) for hosts, gpus in ONE_TO_MANY)


def to_hosts(hosts: int, gpus: int) -> Case:
    """A gibibyte from one GPU to some of each of several hosts."""
    meshes = host_mesh((1, 1), "stage0"), host_mesh((hosts, gpus), "stage1")
    return Case(f"1 to {hosts}x{gpus}", (2**28,), *meshes, _of_spec("R"), _of_spec("R"))


def scaled(case: Case, size: float) -> Case:
    """A case of three dims with about so many bytes."""
    first, second = (each // 8 for each in case.shape[:2])
    return replace(case, shape=(first, second, max(1, round(size / BYTES / first / second))))


@dataclass(frozen=True)
class Outcome:
    """A planned case: simulated seconds, and processor seconds that planning took."""

    seconds: float
    planning: float


def outcome(case: Case, method: Method, order: Order, bandwidth: float | None = None) -> Outcome:
    """What the simulator says of a plan, with the paper's NICs or with others."""
    module = case.module(bandwidth)
    schedule.cache_clear()
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
