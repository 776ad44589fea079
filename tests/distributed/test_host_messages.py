"""Messages on groups of two ranks reach their receivers, and objects are exchanged without NCCL."""

import host_ranks
import pytest

from shardwright.runtime.spawn import run_ranks


@pytest.mark.distributed
def test_messages_arrive_with_and_without_groups_of_pairs():
    expected = [[10 * sender + receiver for sender in range(3) if sender != receiver] for receiver in range(3)]
    assert run_ranks(host_ranks.numbers_over_lines, 3, [(0, 2), (2, 1), (2, 0)]) == expected


@pytest.mark.distributed
def test_a_job_on_nccl_exchanges_objects_over_one_gloo_group():
    assert run_ranks(host_ranks.objects_beside_nccl, 2) == [({"rank": 0}, [0, 1], 1)] * 2
