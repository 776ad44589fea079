"""Every collective against numpy: one launch per number of ranks runs all cases."""

import re
from functools import cache

import collective_cases
import pytest
from collective_cases import MESHES, METHODS, cases
from collective_faults import mismatched, raises_on, refused, sleeps_on, waits_for_a_hung_rank

from shardwright.runtime.spawn import RankError, run_ranks

pytestmark = pytest.mark.distributed


@cache
def problems(world: int) -> list[dict[str, str]]:
    return run_ranks(collective_cases.try_all, world, world)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("world", MESHES)
def test_collective(world: int, kind: str):
    names = [str(case) for case in cases(world) if case.kind == kind]
    by_case = {name: [rank[name] for rank in problems(world)] for name in names}
    assert len(names) > 10
    assert {name: by_rank for name, by_rank in by_case.items() if any(by_rank)} == {}


def test_many_in_flight_at_once():
    assert run_ranks(collective_cases.many_at_once, 4) == [[]] * 4


def test_local_steps():
    assert run_ranks(collective_cases.local_steps, 4) == [[True] * 4] * 4


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", r"collective number 1 differs: .*shapes \[\[6\]\].*shapes \[\[2, 3\]\]"),
        ("dtype", r"collective number 1 differs: .*torch.float32.*torch.int32"),
        ("order", "about to start all_reduce along axes .*, rank 1 all_gather along axes "),
        ("axes", r"about to start all_reduce along axes \['dp'\] .* all_reduce along axes \['tp'\]"),
    ],
)
def test_checked_mode_names_both(how: str, message: str):
    by_rank = run_ranks(mismatched, 4, how)
    assert re.search(message, by_rank[0])
    assert by_rank == [by_rank[0]] * 4


def test_refused_calls_say_what_was_expected():
    assert run_ranks(refused, 2)[0] == [
        "no process group along axes ['tp']; there are groups along ['dp']: name it when making the communicator",
        "start('slice'): expected one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast",
        "start('all_reduce') got 'dim'; its options are reduction, donate, method",
        "all_gather along axes ['dp'] has no method 'ring' on gloo; expected one of direct, padded, grouped_broadcast",
        "all_gather along axes ['dp']: dim 0 of the operand has size 2 on part 0 of 2, "
        "which does not fit parts of [3, 1]",
        "all_reduce along axes ['dp'] has tensors of dtypes ['torch.float32', 'torch.float64']; "
        "expected a single dtype",
        "all_to_all along axes ['dp'] splits and joins the same dim 0; both sizes and concat_sizes are required",
    ]


def test_the_rank_that_raised_is_named():
    with pytest.raises(RankError, match=r"(?s)rank 1 of 3 failed:.*ZeroDivisionError"):
        run_ranks(raises_on, 3, 1)


def test_a_killed_rank_is_named():
    with pytest.raises(RankError, match=r"rank 2 of 3 was killed by SIGKILL before it returned"):
        run_ranks(raises_on, 3, 2, "SIGKILL")


def test_a_collective_waits_no_longer_than_its_timeout():
    first, second, *_ = run_ranks(waits_for_a_hung_rank, 4)
    assert second == "slept"
    assert "Timed out waiting 2000ms" in first


def test_a_hung_rank_is_named():
    with pytest.raises(RankError, match=r"rank 0 of 2 was still running after 4 s"):
        run_ranks(sleeps_on, 2, 0, timeout=4)
