"""Devices of different kinds, which round differently, use the same choice of experts, made by the first device."""

import choice_ranks
import pytest
from split_cluster import split_cluster, unequal_cluster

from shardwright.api.checking.cases import CheckCase, compile_case, imported
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.runtime.spawn import run_ranks

STEPS = 3


def losses(model: str, cluster: Cluster) -> list[list[float]]:
    """Return the losses of some steps of a model with split experts, by rank."""
    case = CheckCase(model, cluster.mesh, "tp", cluster=cluster)
    program = compile_case(case, imported(case)).program
    return run_ranks(choice_ranks.losses, cluster.mesh.device_count, program, model, STEPS)


@pytest.mark.distributed
@pytest.mark.parametrize("model", ["mixtral-tiny", pytest.param("vit-switch-tiny", marks=pytest.mark.thorough)])
def test_other_choices_of_the_slower_device_change_nothing(model: str):
    (alone,) = losses(model, split_cluster(parse_mesh("tp=1")))
    for mine in losses(model, unequal_cluster(parse_mesh("tp=2"))):
        assert mine == pytest.approx(alone, rel=1e-5)
    # Devices of one kind are assumed to choose the same experts; a violation changes the losses.
    one, other = losses(model, split_cluster(parse_mesh("tp=2")))
    assert one != pytest.approx(other, rel=1e-4)
