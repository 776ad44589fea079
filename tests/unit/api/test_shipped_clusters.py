"""Every shipped cluster file can be planned for, and clusters keep their hosts on other meshes."""

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, import_training_step
from shardwright.dialects.mesh_ops import ClusterOp
from shardwright.ir.cluster_file import cluster_toml, find_cluster, parse_cluster, shipped_clusters
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline


@pytest.fixture(scope="module")
def imported() -> ModuleOp:
    return import_training_step(training_step("mlp-tiny"))


@pytest.mark.parametrize("name", shipped_clusters())
def test_a_step_is_planned_on_every_shipped_cluster(name: str, imported: ModuleOp):
    cluster, module = find_cluster(name), imported.clone()
    assert cluster.name == name
    add_cluster(module, cluster)
    run_pipeline(Context(), module, PlanOptions(algorithm="eliminate", ratios="even").passes(cluster))
    (op,) = (op for op in module.ops if isinstance(op, ClusterOp))
    assert op.cluster(cluster.mesh) == cluster


def test_hosts_are_cut_and_repeated_with_the_mesh():
    cluster = find_cluster("amp-het-cluster")
    small, large = on_mesh(cluster, Mesh.of(a=2, b=3)), on_mesh(cluster, Mesh.of(gpu=20))
    assert small.route(3, 4).bandwidth == 10e9 / 8
    assert [large.devices[kind].kind for kind in large.placement[12:]] == ["t4"] * 4 + ["v100"] * 4
    assert large.route(16, 17).bandwidth == 170e9 / 8
    assert parse_cluster(cluster_toml(large)) == large


def test_measurements_stay_if_their_axes_do():
    text = cluster_toml(find_cluster("hidup-2x4-10g")) + "[link.node]\nlatency = 1e-3\nbandwidth = 1e9\n"
    cluster, gather = parse_cluster(text), CollectiveKind.ALL_GATHER
    same, other = on_mesh(cluster, Mesh.of(node=2, gpu=3)), on_mesh(cluster, Mesh.of(node=4, gpu=2))
    assert same.collective_costs(gather, ("node",)) == cluster.collective_costs(gather, ("node",))
    assert other.links == ()


def test_without_hosts_a_new_axis_takes_the_slowest_link():
    cluster = on_mesh(find_cluster("local-4"), Mesh.of(gpu=2, other=3), "mine")
    assert (cluster.name, [link.axis for link in cluster.links]) == ("mine", ["gpu", "other"])
    assert cluster.links[0].beta == cluster.links[1].beta
