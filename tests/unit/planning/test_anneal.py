"""AMP's walk over degrees of parallelism and placements, `search-plan{algorithm=anneal}`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from split_cluster import hosts_cluster, split_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.dialects.compute import python_value
from shardwright.dialects.step import CHOSEN
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import Mesh
from shardwright.models.mlp import mlp_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.anneal import Annealing, Degrees, hosts_of, tiling
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.layouts import LayoutConstraints
from shardwright.passes.planning.records import Chosen
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import step_functions
from shardwright.passes.verification import first_fault

STEP = mlp_step((16, 64, 64, 8), batch=64)


def planned(cluster: Cluster, search: SearchPlanPass | SearchStrategyPass) -> ModuleOp:
    module = import_training_step(STEP)
    run_pipeline(Context(), module, "prepare", verify_each=False)
    add_cluster(module, cluster)
    search.apply(Context(), module)
    assert first_fault(module) is None
    return module


def seconds(module: ModuleOp) -> float:
    return sum(each.seconds for each in simulate_module(module))


def chosen(module: ModuleOp) -> Chosen:
    (func,) = step_functions(module)
    return Chosen.read(python_value(func.attributes[CHOSEN]))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (1, 4)])
def test_dominoes_cover_the_grid_once(dp: int, tp: int, seed: int):
    tiles = tiling(4, 4, Degrees(dp, tp, 1), Random(seed))
    if tiles is not None:
        assert {len(tile) for tile in tiles} == {dp * tp}
        places = Counter(place for tile in tiles for place in tile)
        assert places == Counter((host, place) for host in range(4) for place in range(4))
    # Dominoes that divide the grid in both directions cover it however they are turned.
    assert tiles is not None or dp != tp


def test_dominoes_lie_both_ways():
    draw = Random(0)
    found = {
        tiling(2, 2, Degrees(1, 2, 1), draw) and tuple(tiling(2, 2, Degrees(1, 2, 1), draw) or ()) for _ in range(40)
    }
    along = (((0, 0), (0, 1)), ((1, 0), (1, 1)))
    across = (((0, 0), (1, 0)), ((0, 1), (1, 1)))
    assert {along, across} <= found


def test_it_finds_a_plan_that_search_plan_is_never_slower_than():
    cluster = hosts_cluster(Mesh.of(node=2, gpu=2))
    walked = planned(cluster, SearchPlanPass(algorithm="anneal", iterations=40))
    searched = planned(cluster, SearchPlanPass())
    layout = chosen(walked).candidate.layout
    assert layout.mesh.device_count == 4
    assert seconds(searched) <= seconds(walked) * (1 + 1e-9)


def test_it_does_the_same_for_a_seed_and_in_search_strategy():
    cluster = hosts_cluster(Mesh.of(node=2, gpu=2))
    first, again = (planned(cluster, SearchPlanPass(algorithm="anneal", seed=3, iterations=8)) for _ in range(2))
    assert first.is_structurally_equivalent(again)
    other = planned(cluster, SearchStrategyPass("anneal", seed=3, budget=8))
    assert first.is_structurally_equivalent(other)


def test_a_pipeline_has_several_micro_batches():
    module = import_training_step(STEP)
    run_pipeline(Context(), module, "prepare")
    add_cluster(module, split_cluster(Mesh.of(gpu=4)))
    walk = Annealing(CandidateCompiler(module, split_cluster(Mesh.of(gpu=4))), LayoutConstraints())
    layouts = [degrees.candidate(4, walk.bench.rows, None).layout for degrees in walk.all]
    assert min(layout.parts for layout in layouts if layout.mode == "pipeline") == 2
    assert min(layout.parts for layout in layouts if layout.mode != "pipeline") == 1


def test_stages_are_placed_on_other_ranks_than_the_first():
    """Dominoes that lie across two hosts give a stage a device of each."""
    module = import_training_step(STEP)
    run_pipeline(Context(), module, "prepare", verify_each=False)
    add_cluster(module, cluster := hosts_cluster(Mesh.of(node=2, gpu=2)))
    walk = Annealing(CandidateCompiler(module, cluster), LayoutConstraints(), budget=30)
    walk.run()
    assert (0, 2, 1, 3) in walk.benches
    assert all(ranks is None or sorted(ranks) == [0, 1, 2, 3] for ranks in walk.benches)


def test_it_keeps_to_what_is_asked():
    cluster = split_cluster(Mesh.of(gpu=4))
    module = planned(cluster, SearchPlanPass(algorithm="anneal", stages=2, micro_batches=4, iterations=20))
    layout = chosen(module).candidate.layout
    assert (layout.stages, layout.parts) == (2, 4)
    with pytest.raises(PassFailedException, match=r"algorithm=anneal decides on the mesh itself; leave out mesh"):
        planned(cluster, SearchPlanPass(algorithm="anneal", mesh="2x2"))
    with pytest.raises(PassFailedException, match=r"algorithm=anneal decides on whole plans; leave out memory"):
        planned(cluster, SearchStrategyPass("anneal", memory=1e6))


def test_hosts_are_rows_where_nothing_else_is_known():
    assert hosts_of(split_cluster(Mesh.of(node=2, gpu=2))) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("ranks", [[2, 3, 0, 1], [3, 1, 2, 0]])
def test_stages_on_any_ranks_train_as_one_device(ranks: list[int], tmp_path: Path):
    mesh = Mesh.of(gpu=4)
    search = SearchPlanPass(stages=2, micro_batches=2, idle="no", duplex="no")
    (func,) = step_functions(planned(split_cluster(mesh), search))
    record = tmp_path / "candidate.json"
    record.write_text(json.dumps(python_value(func.attributes[CHOSEN]) | {"ranks": ranks}))
    passes = f'prepare,search-plan{{candidate="{record}"}}'
    case = CheckCase(lambda: STEP, mesh, dtype=torch.float64, steps=2, pipeline=passes, cluster=split_cluster(mesh))
    result = check_interpreted(case)
    assert result.passed, str(result)
