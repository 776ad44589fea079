"""Clusters in the IR print and read back."""

from cluster_strategies import clusters
from hypothesis import given, settings
from ir_files import context
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.mesh_ops import ClusterOp, MeshOp
from shardwright.dialects.text import module_text, parse_module
from shardwright.ir.cluster import Cluster


@given(clusters())
@settings(max_examples=30, deadline=None)
def test_any_cluster_reads_back(cluster: Cluster):
    text = module_text(ModuleOp([MeshOp(cluster.mesh), ClusterOp(cluster)]))
    module = parse_module(context(), text)
    module.verify()
    mesh, op = module.ops
    assert isinstance(mesh, MeshOp)
    assert isinstance(op, ClusterOp)
    assert op.cluster(mesh.mesh) == cluster
