"""Plans of transfers: bitwise exact delivery, and one copy for each receiving host."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.mesh import Mesh
from shardwright.ir.port_schedule import Order
from shardwright.ir.sharding import DimSharding, Sharding
from shardwright.ir.task_order import in_turn, listed_by_slice
from shardwright.ir.transfer_plan import (
    Method,
    Placed,
    Sites,
    WantedSlice,
    least_nic_time,
    nic_time,
    plan,
    units,
)
from shardwright.ir.unit_tasks import Grid, Task
from shardwright.lowering.interpreter.local_values import assemble, split
from shardwright.lowering.interpreter.transfers import deliver

CASES = json.loads((Path(__file__).parents[2] / "data" / "cross_mesh_cases.json").read_text())["cases"]
METHODS: tuple[Method, ...] = ("broadcast", "send_recv", "local_allgather", "global_allgather")
ORDERS: tuple[Order, ...] = ("best", "exact", "naive", "greedy", "dispatch", "randomized", "dfs")


def placed(mesh: Mesh, sharding: Sharding, first: int = 0) -> Placed:
    """Place a value on consecutive ranks of the job."""
    return Placed(Grid.of(mesh, range(first, first + mesh.device_count)), sharding)


def of_spec(shape: tuple[int, int], spec: list[str], first: int) -> Placed:
    """Place a value given in the paper's notation: `S01` is a dim split over both axes of a mesh."""
    names = ("node", "gpu")
    dims = [[names[int(axis)] for axis in entry[1:]] for entry in spec]
    return placed(Mesh.of(node=shape[0], gpu=shape[1]), Sharding.of(dims), first)


def hosts_of(mesh: Mesh, first_rank: int, first_host: int) -> dict[int, int]:
    """Map ranks to hosts, one host per row of the mesh."""
    row = mesh.axis("gpu").size
    return {first_rank + i: first_host + i // row for i in range(mesh.device_count)}


def is_delivered(shape: tuple[int, ...], source: Placed, target: Placed, tasks: Sequence[Task]) -> bool:
    """Return whether the tasks bring every receiver its exact part."""
    value = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    sent = split(value, source.sharding, source.grid.mesh)
    arrived = deliver(tasks, sent, source.grid, target.sharding, target.grid)
    return torch.equal(assemble(arrived, check=True), value)


def crossings(tasks: Iterable[Task], hosts: Mapping[int, int]) -> int:
    """Return the elements that go from one host to another."""
    chains = ((task.elements, (task.sender, *task.receivers)) for task in tasks)
    return sum(n for n, chain in chains for a, b in itertools.pairwise(chain) if hosts[a] != hosts[b])


def least_crossings(given: Iterable[WantedSlice], hosts: Mapping[int, int]) -> int:
    """Return the elements that must go from one host to another: a copy for each receiving host that holds none."""
    return sum(
        unit.elements * len({hosts[r] for r in unit.receivers} - {hosts[r] for r in unit.holders}) for unit in given
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_cases_of_the_paper(name: str, method: Method):
    case = CASES[name]
    source = of_spec(case["src_mesh"], case["src_spec"], 0)
    ranks = source.grid.mesh.device_count
    target = of_spec(case["dst_mesh"], case["dst_spec"], ranks)
    hosts = hosts_of(source.grid.mesh, 0, 0) | hosts_of(target.grid.mesh, ranks, 100)
    shape = tuple(case["shape"])
    found = units(shape, source, target)
    tasks = plan(found, Sites(hosts), method)
    assert is_delivered(shape, source, target, tasks)
    crossing, least = crossings(tasks, hosts), least_crossings(found, hosts)
    if method in ("broadcast", "local_allgather"):
        assert crossing == least
    if method == "broadcast":
        assert len(tasks) == case["unit_tasks"]
        receivers = {hosts[rank] for rank in target.grid.ranks}
        into = [sum(u.elements for u in found if host in {hosts[r] for r in u.receivers}) for host in receivers]
        assert crossing == sum(into)
        assert nic_time(tasks, Sites(hosts)) == least_nic_time(found, Sites(hosts))


def even_or_not(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """Draw a sharding of a value: even if possible, or with drawn boundaries and empty parts."""
    dims: list[DimSharding] = []
    free = list(mesh.names)
    for size in shape:
        axes = tuple(axis for axis in free if data.draw(st.booleans()))
        free = [axis for axis in free if axis not in axes]
        parts = mesh.parts(axes)
        even = parts <= size and data.draw(st.booleans())
        cuts = sorted(data.draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
        dims.append(DimSharding(axes, None if even or not axes else (0, *cuts, size)))
    return Sharding(tuple(dims))


meshes = st.sampled_from([Mesh.of(node=nodes, gpu=gpus) for nodes, gpus in ((1, 1), (1, 3), (2, 2), (3, 1))])


@settings(max_examples=120, deadline=None)
@given(st.data(), meshes, meshes, st.sampled_from(METHODS), st.sampled_from(ORDERS))
def test_uneven_and_empty_parts(data: st.DataObject, one: Mesh, other: Mesh, method: Method, order: Order):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    source = placed(one, even_or_not(data, one, shape))
    ranks = one.device_count
    target = placed(other, even_or_not(data, other, shape), ranks)
    near = data.draw(st.booleans())
    hosts = hosts_of(one, 0, 0) | hosts_of(other, ranks, 0 if near else 10)
    found = units(shape, source, target)
    several = data.draw(st.booleans())
    sites = Sites(hosts, {rank: rank // 2 + 50 * host for rank, host in hosts.items()} if several else None)
    tasks = plan(found, sites, method, order)
    assert is_delivered(shape, source, target, tasks)
    assert nic_time(tasks, sites) >= least_nic_time(found, sites)
    by_slice, lists = listed_by_slice(tasks, sites.nic)
    assert sorted(map(str, by_slice)) == sorted(map(str, tasks))
    again = in_turn(by_slice, lists)
    for rank in hosts:
        mine = [[task for task in each if rank in (task.sender, *task.receivers)] for each in (tasks, again)]
        assert mine[0] == mine[1]
    if lists is not None:
        lists.verify(by_slice)
    if sites.nics is None:
        assert nic_time(again, sites) == nic_time(tasks, sites)
    assert all(task.sender not in task.receivers for task in tasks)
    if method == "broadcast" and order != "naive":
        assert crossings(tasks, hosts) == least_crossings(found, hosts)


def test_values_held_by_a_host_do_not_cross():
    source, target = placed(Mesh.of(gpu=4), Sharding.of([[]])), placed(Mesh.of(gpu=4), Sharding.of([[]]), 4)
    hosts = dict(zip(range(8), (0, 0, 1, 1, 0, 1, 1, 2), strict=True))
    found = units((5,), source, target)
    tasks = plan(found, Sites(hosts))
    assert is_delivered((5,), source, target, tasks)
    assert crossings(tasks, hosts) == least_crossings(found, hosts) == 5


def test_micro_batches_are_sent_separately():
    mesh = Mesh.of(gpu=2).over(micro=2)
    source = placed(mesh, Sharding.of([["micro"], ["gpu"]]))
    target = placed(mesh, Sharding.of([["micro"], []]), 2)
    found = units((4, 4), source, target)
    assert sorted({unit.part for unit in found}) == [0, 1]
    assert [unit.box for unit in found if unit.part == 1] == [((2, 4), (0, 2)), ((2, 4), (2, 4))]
    assert is_delivered((4, 4), source, target, plan(found, Sites(dict.fromkeys(range(4), 0))))


def test_a_value_without_micro_batches_is_sent_once():
    mesh = Mesh.of(gpu=2).over(micro=3)
    source, target = placed(mesh, Sharding.of([["gpu"]])), placed(mesh, Sharding.of([[]]), 2)
    found = units((4,), source, target)
    assert [unit.part for unit in found] == [0, 0]
    assert is_delivered((4,), source, target, plan(found, Sites(dict.fromkeys(range(4), 0))))


def test_senders_share_the_load_of_their_hosts():
    boxes = [((i, i + 1),) for i in range(8)]
    given_units = [WantedSlice(0, box, (0, 1, 2, 3), (8 + i % 4,)) for i, box in enumerate(boxes)]
    hosts = {0: 0, 1: 0, 2: 1, 3: 1, 8: 10, 9: 10, 10: 11, 11: 11}
    tasks = plan(given_units, Sites(hosts))
    assert sorted(task.sender for task in tasks) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {task.sender for task in plan(given_units, Sites(hosts), order="naive")} == {0}


def test_hosts_receive_slices_through_all_their_nics():
    hosts = {rank: rank // 4 for rank in range(8)}
    given_units = [WantedSlice(0, ((i, i + 1),), (i,), (4, 5, 6, 7)) for i in range(4)]
    for nics, time in (({rank: rank for rank in range(8)}, 1), ({rank: rank // 2 for rank in range(8)}, 2), (None, 4)):
        sites = Sites(hosts, nics)
        tasks = plan(given_units, sites)
        assert nic_time(tasks, sites) == least_nic_time(given_units, sites) == time
    entries = [task.receivers[0] for task in plan(given_units, Sites(hosts, {rank: rank for rank in range(8)}))]
    assert sorted(entries) == [4, 5, 6, 7]


def test_units_are_cut_if_senders_cannot_share_them_evenly():
    sites = Sites({0: 0, 1: 1, 2: 2, 3: 3, 4: 4})
    given_units = [WantedSlice(0, ((10 * i, 10 * i + 10), (0, 3)), (0, 1), (2 + i,)) for i in range(3)]
    assert least_nic_time(given_units, sites) == 45
    tasks = plan(given_units, sites)
    assert nic_time(tasks, sites) == 45
    assert sorted(task.slice for task in tasks) == [((a, a + 5), (0, 3)) for a in range(0, 30, 5)]
    assert nic_time(plan(given_units, sites, order="dfs"), sites) == 60


def test_devices_of_a_host_take_turns():
    given_units = [WantedSlice(0, ((4 * i + j, 4 * i + j + 1),), (i,), (4 + j,)) for i in range(4) for j in range(4)]
    tasks = plan(given_units, Sites(dict.fromkeys(range(8), 0)))
    own_hosts = Sites({rank: rank for rank in range(8)})
    assert nic_time(tasks, own_hosts) == 4
    assert nic_time(plan(given_units, own_hosts, order="naive"), own_hosts) == 7


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (placed(Mesh.of(gpu=2), Sharding.of([[]])), placed(Mesh.of(gpu=2), Sharding.of([[]]), 1), "rank 1 is in both"),
        (
            placed(Mesh.of(gpu=1).over(micro=2), Sharding.of([["micro"]])),
            placed(Mesh.of(gpu=1).over(micro=4), Sharding.of([["micro"]]), 1),
            "the micro-batches of the two meshes differ: {'micro': 2} on the sender, {'micro': 4} on the receiver",
        ),
        (
            placed(Mesh.of(gpu=1).over(micro=2), Sharding.of([["micro"]])),
            placed(Mesh.of(gpu=1).over(micro=2), Sharding.of([[]]), 1),
            "cannot be sent to a consumer that needs the full batch",
        ),
    ],
)
def test_incompatible_meshes_are_refused(source: Placed, target: Placed, message: str):
    with pytest.raises(ValueError, match=message):
        units((4,), source, target)
