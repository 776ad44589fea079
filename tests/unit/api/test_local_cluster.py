"""Clusters of this machine."""

import pytest

from shardwright.api.calibration.local_cluster import generic_cluster


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_a_generic_cluster_has_the_given_number_of_ranks(ranks: int):
    cluster = generic_cluster(ranks)
    assert (cluster.name, cluster.mesh.device_count) == (f"local-{ranks}", ranks)
