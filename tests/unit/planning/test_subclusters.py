"""Plans that leave devices idle where the step is faster without them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from split_cluster import hosts_cluster, one_useless_cluster, split_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from shardwright.api.compile import import_training_step
from shardwright.api.plan_report import report
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.compute import python_value
from shardwright.dialects.mesh_ops import MeshOp
from shardwright.dialects.step import CHOSEN
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.cluster_file import find_cluster, load_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.topology import Host, Level, Topology
from shardwright.models.mlp import mlp_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidates import ADDITIVE, Candidate, Layout, presets
from shardwright.passes.planning.explore import Explorer
from shardwright.passes.planning.records import Chosen
from shardwright.passes.planning.subclusters import parts_of_cluster, total_memory
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.step.step_view import step_functions
from shardwright.passes.verification import first_fault

LOCAL = Path(__file__).parents[3] / "examples" / "clusters" / "local-4.toml"
SMALL = mlp_step((16, 64, 8), batch=64)
THREE = one_useless_cluster(Mesh.of(gpu=3))


def prepared(cluster: Cluster, step: TrainingStep) -> ModuleOp:
    module = import_training_step(step)
    run_pipeline(Context(), module, "prepare", verify_each=False)
    add_cluster(module, cluster)
    return module


def planned(cluster: Cluster, search: SearchPlanPass = SearchPlanPass(), step: TrainingStep = SMALL) -> ModuleOp:
    module = prepared(cluster, step)
    search.apply(Context(), module)
    assert first_fault(module) is None
    return module


@cache
def with_an_idle_one() -> ModuleOp:
    """Return the small step planned on three devices of which one is useless; tests only read it."""
    return planned(THREE)


def by_hand(cluster: Cluster, pipeline: str, step: TrainingStep) -> ModuleOp:
    module = prepared(cluster, step)
    run_pipeline(Context(), module, pipeline, verify_each=False)
    return module


def ranks_by_mesh(module: ModuleOp) -> dict[str, tuple[int, ...]]:
    return {op.sym_name.data: op.ranks for op in module.ops if isinstance(op, MeshOp)}


def seconds(module: ModuleOp) -> float:
    return sum(each.seconds for each in simulate_module(module))


def test_parts_are_the_fastest_kinds_hosts_and_devices():
    def ranks(cluster: Cluster, *speeds: float) -> list[tuple[int, ...]]:
        times = {device: 1.0 / speed for device, speed in zip(cluster.kinds_used, speeds, strict=True)}
        return [ranks for ranks, _ in parts_of_cluster(cluster, times)]

    assert ranks(one_useless_cluster(Mesh.of(gpu=4)), 1000.0, 1.0) == [(1,), (1, 2), (1, 2, 3)]
    hosts = hosts_cluster(Mesh.of(node=4, gpu=4))
    assert ranks(hosts, 1.0) == [(0,), (0, 1), (0, 1, 2, 3), tuple(range(8))]
    parts = dict(parts_of_cluster(hosts, {hosts.devices[0]: 1.0}))
    assert [(axis.name, axis.size) for axis in parts[tuple(range(8))].mesh.axes] == [("node", 2), ("gpu", 4)]
    # Only the links along whole rows of the mesh are known.
    assert ranks(split_cluster(Mesh.of(node=2, gpu=2)), 1.0) == [(0,), (0, 1)]


def test_devices_that_are_far_slower_together_are_not_searched_further():
    """Beside the first candidates on all three devices there are the plans that people write, and no others."""
    (func,) = step_functions(with_an_idle_one())
    plan = read_plan(func)
    assert plan is not None
    on_all = [each.name for each in plan.candidates if "only ranks" not in each.name]
    assert "only ranks" in plan.chosen
    assert any(name.startswith("tp") for name in on_all)
    choices = (ADDITIVE, replace(ADDITIVE, balanced=True), *presets(Mesh.of(gpu=3)))
    plain = [Candidate(Layout(Mesh.of(gpu=3)), choice).name for choice in choices]
    assert sum(name.startswith("searched") for name in on_all if name not in plain) <= 3
    assert any(each.name.startswith("searched") for each in plan.candidates if "only ranks" in each.name)


def test_the_likeliest_part_of_the_cluster_has_the_whole_allowance(monkeypatch: pytest.MonkeyPatch):
    allowed: list[tuple[tuple[int, ...] | None, float]] = []

    def find_none(explorer: Explorer, worth: float) -> None:
        allowed.append((explorer.ranks, explorer.allowance.work))

    monkeypatch.setattr(Explorer, "go_on", find_none)
    with pytest.raises(PassFailedException):
        planned(THREE, SearchPlanPass(work=1000))
    (first, work), *others = allowed
    assert first is not None
    assert work == 1000
    assert all(work < 1000 for ranks, work in others if ranks is not None)


def test_a_host_behind_a_slow_link_is_left_out_wherever_it_is():
    cluster = hosts_cluster(Mesh.of(node=3, gpu=2))
    assert cluster.topology is not None
    near, far = Host(2, "wire", "nic"), Host(2, "wire", "far")
    levels = (*cluster.topology.levels, Level("far", 1e-4, 1e5))
    for hosts, rest in (((far, near, near), (2, 3, 4, 5)), ((near, far, near), (0, 1, 4, 5))):
        given = replace(cluster, topology=Topology(levels, hosts))
        assert rest in dict(parts_of_cluster(given, {given.devices[0]: 1.0}))


@pytest.mark.parametrize("options", [{}, {"stages": 2, "micro_batches": 4}, {"micro_batches": 2, "stages": 1}])
def test_a_useless_device_idles(options: dict[str, Any]):
    module = planned(THREE, SearchPlanPass(**options)) if options else with_an_idle_one()
    idle = ranks_by_mesh(module)
    assert idle.pop("job") == (0, 1, 2)
    assert idle.pop("idle") == (0,)
    assert sorted(rank for ranks in idle.values() for rank in ranks) == [1, 2]
    (func,) = step_functions(module)
    plan = read_plan(func)
    assert plan is not None
    assert plan.step == pytest.approx(seconds(module), rel=1e-9)
    assert " on 2, only ranks [1-2]" in plan.chosen
    told = report(module, {}, "mlp", None)
    assert (told["idle"], told["stages"]) == ([0], [1, 1] if options.get("stages") == 2 else [2])
    assert told["predicted_step_s"] == pytest.approx(plan.step, rel=1e-9)

    chosen = python_value(func.attributes[CHOSEN])
    assert Chosen.read(chosen).candidate.layout.ranks == (1, 2)
    again = planned(THREE, SearchPlanPass(candidate=json.dumps(chosen)))
    assert seconds(again) == seconds(module)
    assert ranks_by_mesh(again) == ranks_by_mesh(module)

    whole = planned(THREE, SearchPlanPass(idle="no", **options))
    assert "idle" not in ranks_by_mesh(whole)
    assert seconds(whole) > 2 * seconds(module)


def test_a_part_keeps_its_own_hosts():
    """The host that idles comes first and has one device; the others are inside one host."""
    cluster = load_cluster(Path(__file__).parents[3] / "benchmarks/clusters/slow-one.toml")
    assert cluster.topology is not None
    turned = replace(cluster.topology, hosts=cluster.topology.hosts[::-1])
    first_slow = replace(cluster, topology=turned, placement=cluster.placement[::-1])
    large = mlp_step((256, 1024, 10), batch=16384)
    found = [planned(each, step=large) for each in (cluster, first_slow)]
    assert [ranks_by_mesh(module)["idle"] for module in found] == [(3,), (0,)]
    plans = [read_plan(step_functions(module)[0]) for module in found]
    for module, plan in zip(found, plans, strict=True):
        assert plan is not None
        assert plan.step == pytest.approx(seconds(module), rel=1e-9)
    assert seconds(found[0]) == pytest.approx(seconds(found[1]), rel=1e-9)


def test_alike_devices_all_work():
    assert "idle" not in ranks_by_mesh(planned(split_cluster(Mesh.of(gpu=4))))


def test_a_plan_with_idle_ranks_is_put_on_other_devices():
    module = with_an_idle_one()
    (func,) = step_functions(module)
    chosen = json.dumps(python_value(func.attributes[CHOSEN]))
    moved = planned(split_cluster(Mesh.of(gpu=2)), SearchPlanPass(candidate=chosen, adapt=True))
    assert "idle" not in ranks_by_mesh(moved)
    again = planned(THREE, SearchPlanPass(candidate=chosen, adapt=True))
    assert ranks_by_mesh(again) == ranks_by_mesh(module)
    with pytest.raises(PassFailedException, match=r"only ranks \[1-2\], but options say idle=no; leave one out"):
        planned(THREE, SearchPlanPass(candidate=chosen, idle="no"))


def test_parts_with_too_little_memory_for_the_state_are_left_out():
    cluster = one_useless_cluster(Mesh.of(gpu=3))
    seconds = {device: float(at) for at, device in enumerate(cluster.kinds_used)}
    memory = int(total_memory(cluster)) // 3
    parts = [[ranks for ranks, _ in parts_of_cluster(cluster, seconds, least)] for least in (0, memory, memory + 1)]
    assert {len(ranks) for ranks in parts[0]} == {1, 2}
    assert parts[1] == parts[0]
    assert {len(ranks) for ranks in parts[2]} == {2}


def test_a_candidate_whose_ranks_have_no_known_links_is_refused():
    module = with_an_idle_one()
    (func,) = step_functions(module)
    record = python_value(func.attributes[CHOSEN]) | {"ranks": [0, 3], "own_mesh": {"node": 2, "gpu": 2}}
    search = SearchPlanPass(candidate=json.dumps(record))
    with pytest.raises(Exception, match="has no links between these ranks alone"):
        planned(split_cluster(Mesh.of(node=2, gpu=2)), search)


def test_it_does_not_depend_on_the_number_of_processes():
    one, two = with_an_idle_one(), planned(THREE, SearchPlanPass(processes=2))
    assert one.is_structurally_equivalent(two)


def test_the_shipped_clusters_have_parts():
    cluster = find_cluster("hap-8x8")
    parts = parts_of_cluster(cluster, dict.fromkeys(cluster.kinds_used, 1.0))
    assert all(part.mesh.device_count == len(ranks) for ranks, part in parts)


def test_a_plan_whose_mesh_has_axes_of_its_own_is_simulated_on_its_cluster_and_on_another(tmp_path: Path):
    four = find_cluster("local-4")
    links = tuple(replace(four.links[0], axis=axis, points=()) for axis in ("outer", "inner"))
    part = replace(four, name="part", mesh=Mesh.of(outer=2, inner=2), links=links)
    job = tmp_path / "eight.toml"
    job.write_text(LOCAL.read_text().replace('"gpu=4"', '"gpu=8"'))
    module = import_training_step(SMALL)
    add_cluster(module, part)
    run_pipeline(Context(), module, f'prepare,search-strategy,program,leave-idle{{file="{job}" ranks="0,1,2,3"}}')
    for cluster in (None, load_cluster(job)):
        (simulation,) = simulate_module(module, cluster)
        assert simulation.seconds > 0.0


@pytest.mark.parametrize(("memory", "fits"), [(4e9, False), (7.5e6, True)])
def test_the_additive_optimum_is_tried_with_shares_by_speed_however_early_the_search_ends(memory: float, fits: bool):
    """HAP's algorithm is one of the plans by hand: the additive optimum within memory, and the shares that suit it."""
    cluster, step = find_cluster("mixed-4"), mlp_step((256, 256, 10), batch=4096)
    cluster = replace(cluster, devices=tuple(replace(device, memory=memory) for device in cluster.devices))
    module = planned(cluster, SearchPlanPass(work=1, idle="no"), step)
    for turns in ("search-strategy,balance-ratios", 'fixed-point{pipeline="search-strategy,balance-ratios"}'):
        assert seconds(module) <= seconds(by_hand(cluster, f"{turns},program", step))
    plan = read_plan(step_functions(module)[0])
    assert plan is not None
    additive = Candidate(Layout(Mesh.of(gpu=4)), replace(ADDITIVE, balanced=True, fits=fits))
    assert additive.name in [each.name for each in plan.candidates]


def far_cluster(memory: float) -> Cluster:
    """Return fast devices on slow links, where only memory is a reason to split anything."""
    device = Device("fast", (("float32", 1e12),), 1e11, memory)
    return Cluster("far", Mesh.of(gpu=4), (device,), (0,) * 4, (Link("gpu", 1e-4, 1e-6),))


@pytest.mark.parametrize("memory", [7e6, 4e6])
def test_the_additive_optimum_within_memory_is_tried_however_early_the_search_ends(memory: float):
    """`search-strategy` is one of the plans by hand; without a limit everything is replicated in 0.3 ms."""
    cluster, step = far_cluster(memory), mlp_step((512, 512, 512, 10), batch=64)
    hand = by_hand(cluster, "search-strategy,program", step)
    assert seconds(planned(cluster, SearchPlanPass(work=1, idle="no"), step)) <= seconds(hand)
