"""Clusters of this machine."""

import pytest

from shardwright.api.local_cluster import cluster_of, generic_cluster
from shardwright.ir.cluster_file import cluster_toml, parse_cluster
from shardwright.ir.collectives import CollectiveKind

MEASURED = {
    "world_size": 2,
    "flops": {"float32": 1e9, "float64": 5e8},
    "memory_bandwidth": 2e9,
    "launch": 1e-6,
    "memory": 4e9,
    "collectives": {
        "all_reduce": {"alpha": 1e-4, "beta": 1e-9},
        "all_gather": {"alpha": 2e-4, "beta": 2e-9},
        "broadcast": {"alpha": 3e-4, "beta": 3e-9},
    },
}


def test_what_was_measured_is_the_cluster():
    cluster = cluster_of(MEASURED)
    assert (cluster.name, cluster.mesh.device_count, cluster.memory) == ("local-2", 2, 4e9)
    assert cluster.device(1).rate("float64") == 5e8
    (link,) = cluster.links
    assert (link.alpha, link.beta) == (2e-4, 2e-9)
    assert link.costs(CollectiveKind.ALL_REDUCE) == (1e-4, 1e-9)
    assert parse_cluster(cluster_toml(cluster)) == cluster


def test_ranks_of_one_have_a_link_that_can_be_written():
    free = {kind: {"alpha": 1e-6, "beta": 0.0} for kind in MEASURED["collectives"]}
    cluster = cluster_of({**MEASURED, "world_size": 1, "collectives": free})
    assert parse_cluster(cluster_toml(cluster)).links[0].beta == pytest.approx(1e-12)


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_the_generic_machine_has_any_number_of_ranks(ranks: int):
    cluster = generic_cluster(ranks)
    assert (cluster.name, cluster.mesh.device_count) == (f"local-{ranks}", ranks)
