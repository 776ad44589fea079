"""Transfers between the ranks of two stages are exact for all orders of starts and waits."""

from functools import cache

import pytest
import transfer_cases
from transfer_cases import Case, cases

from shardwright.runtime.spawn import run_ranks

pytestmark = pytest.mark.distributed


@cache
def problems() -> list[dict[str, str]]:
    return run_ranks(transfer_cases.try_all, 4)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_transfer(case: Case):
    assert [found[str(case)] for found in problems()] == [""] * 4


def test_many_in_flight_at_once():
    assert run_ranks(transfer_cases.many_at_once, 4) == [[]] * 4


def test_forwarding_does_not_wait_for_the_program():
    assert run_ranks(transfer_cases.waits_in_circles, 4, timeout=30) == [True] * 4


def test_refused_calls_say_what_was_expected():
    assert run_ranks(transfer_cases.refused, 4)[0] == [
        "there is no transfer 'nothing' in this job; its transfers: '2 to 2, rows to rows'",
        "transfer '2 to 2, rows to rows' is received by ranks [2, 3]; this is rank 0",
        "transfer '2 to 2, rows to rows' sends shape [15, 6] from this rank, found [3, 3]",
        "transfer 'h': this communicator has no channels to other stages",
        'mesh <["gpu"=2]> has 2 ranks, this job 4',
        'mesh <["gpu"=2]> has 2 ranks, but is placed on ranks [0, 1, 2] of a job of 4 ranks',
    ]
