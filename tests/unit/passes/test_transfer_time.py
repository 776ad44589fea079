"""The simulated time of transfers is between the bound and the plan, and follows the order in the IR."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.mesh_ops import ClusterOp, MeshOp
from shardwright.dialects.pipe import TransferOp
from shardwright.dialects.text import module_text, parse_module
from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.mesh import Mesh
from shardwright.ir.port_schedule import Order
from shardwright.ir.submesh import subcluster
from shardwright.ir.task_order import in_turn, listed_by_slice
from shardwright.ir.topology import Host, Level, Topology
from shardwright.ir.transfer_plan import Sites, WantedSlice, least_nic_time, nic_time, plan
from shardwright.ir.unit_tasks import Task
from shardwright.passes.analysis.simulation.places import Routes
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.analysis.simulation.transfer_time import task_seconds
from shardwright.passes.plan_transfers import PlanTransfersPass
from shardwright.tools.ir_input import full_context

BANDWIDTH, LATENCY = 1e6, 1e-3
DEVICE = Device("gpu", (("float32", 1e12),), 1e12, 1e12, 0.0)


def cluster(hosts: int, gpus: int, nics: int = 1, latency: float = 0.0) -> Cluster:
    """Return hosts with fast inner links and slow NICs."""
    levels = (Level("inside", 0.0, 1e15), Level("nic", latency, BANDWIDTH))
    topology = Topology(levels, (Host(gpus, "inside", "nic", nics, hosts),))
    return Cluster("test", Mesh.of(node=hosts, gpu=gpus), (DEVICE,), (0,) * hosts * gpus, (), topology=topology)


def sites(of: Cluster) -> Sites:
    """Return the hosts and NICs of a cluster's topology."""
    assert of.topology is not None
    seats = [of.topology.seat(rank) for rank in range(of.mesh.device_count)]
    return Sites({r: seat.host for r, seat in enumerate(seats)}, {r: 8 * s.host + s.nic for r, s in enumerate(seats)})


@st.composite
def wanted(draw: st.DrawFn) -> list[WantedSlice]:
    """Draw slices that ranks of two hosts hold and ranks of two other hosts need, with four ranks per host."""
    found: list[WantedSlice] = []
    for number in range(draw(st.integers(1, 6))):
        holders = draw(st.sets(st.integers(0, 7), min_size=1))
        receivers = draw(st.sets(st.integers(8, 15), min_size=1))
        begin = 10_000 * number
        end = begin + draw(st.integers(1, 9_000))
        found.append(WantedSlice(0, ((begin, end),), tuple(sorted(holders)), tuple(sorted(receivers))))
    return found


@settings(max_examples=50, deadline=None)
@given(wanted(), st.sampled_from([1, 2, 4]), st.sampled_from(["best", "naive", "greedy", "randomized"]))
def test_the_time_is_between_the_bound_and_the_plan(given_units: list[WantedSlice], nics: int, order: Order):
    of = cluster(4, 4, nics)
    where = sites(of)
    tasks = plan(given_units, where, order=order)
    seconds = task_seconds(tasks, 4, Routes(of)) * BANDWIDTH / 4
    assert seconds >= least_nic_time(given_units, where) * (1 - 1e-9)
    # Chunks of one byte would make both equal; a slice forwarded in one piece passes the hosts of a chain one by one.
    handed_on = sum(task.elements for task in tasks if len({where.hosts[rank] for rank in task.receivers}) > 1)
    assert seconds <= nic_time(tasks, where) + handed_on + 1e-3
    by_slice, lists = listed_by_slice(tasks, where.nic)
    assert task_seconds(in_turn(by_slice, lists), 4, Routes(of)) * BANDWIDTH / 4 == pytest.approx(seconds)


def test_a_chain_takes_as_long_as_the_paper_says():
    """T = t + (A - 1) t / K: the first of A hosts begins at once, and each other one chunk after its predecessor."""
    of, size = cluster(5, 2, latency=LATENCY), 100 * 2**20
    task = Task(0, ((0, size),), 0, (2, 3, 4, 5, 6, 7, 8, 9))
    t = size / BANDWIDTH
    assert task_seconds([task], 1, Routes(of)) == pytest.approx(t + 3 * t / 100 + 4 * LATENCY)


def test_ports_take_turns():
    of = cluster(4, 1)
    to = [Task(0, ((i, i + 1),), i // 2, (2 + i % 2,)) for i in range(4)]
    assert task_seconds(to, 10**6, Routes(of)) == pytest.approx(3.0)
    assert task_seconds([to[0], to[3], to[1], to[2]], 10**6, Routes(of)) == pytest.approx(2.0)


CASE_4 = """
spmd.mesh @stage0 = <["node"=2, "gpu"=4]> on [0, 1, 2, 3, 4, 5, 6, 7]
spmd.mesh @stage1 = <["node"=2, "gpu"=4]> on [8, 9, 10, 11, 12, 13, 14, 15]
func.func @step(%x: tensor<1024x1024x8xf32> {pipe.stage = 0 : i64,
    spmd.sharding = #spmd.sharding<@stage0, [{}, {"node", "gpu"}, {}]>}) -> tensor<1024x1024x8xf32>
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{"node", "gpu"}, {}, {}]> : tensor<1024x1024x8xf32>
  func.return %h : tensor<1024x1024x8xf32>
}
"""


def case_4(order: Order) -> ModuleOp:
    """Return the plan of the fourth case of the paper's Table 2."""
    module, whole = parse_module(full_context(), CASE_4, "case4"), cluster(4, 4)
    stages = [op.mesh for op in module.ops if isinstance(op, MeshOp)]
    clusters = [whole, *(subcluster(whole, mesh, range(8 * stage, 8 * stage + 8)) for stage, mesh in enumerate(stages))]
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_ops_before([MeshOp(whole.mesh), *map(ClusterOp, clusters)], first)
    PlanTransfersPass(order=order).apply(Context(), module)
    return module


@pytest.mark.parametrize(("order", "ratio"), [("greedy", 1.875), ("best", 1.0), ("dfs", 1.0), ("exact", 1.0)])
def test_the_simulator_follows_the_order(order: Order, ratio: float):
    module = parse_module(full_context(), module_text(case_4(order)), "case4")
    (transfer,) = (op for op in module.walk() if isinstance(op, TransferOp))
    assert transfer.order is not None
    (run,) = simulate_module(module)[0].execution.traffic
    bound = 2**20 * 8 * 4 / 2 / BANDWIDTH
    assert run.end - run.start == pytest.approx(ratio * bound)
