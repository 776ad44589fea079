"""Several processes compute the same results as one, even if one of them dies."""

import os
import signal

import pytest

from shardwright.passes.planning.processes import side_by_side


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_results_are_in_the_order_of_the_items(processes: int):
    assert side_by_side(lambda item: item * item, [3, 1, 4, 1, 5], processes) == [9, 1, 16, 1, 25]


def test_there_may_be_nothing_to_do():
    assert side_by_side(str, [], 4) == []


def test_each_process_has_a_share_and_what_belongs_together_stays_so():
    found = side_by_side(lambda item: (item, os.getpid()), list(range(8)), 2, together=lambda item: item // 4)
    assert [item for item, _ in found] == list(range(8))
    first, second = {pid for item, pid in found if item < 4}, {pid for item, pid in found if item >= 4}
    assert len(first) == len(second) == 1
    assert first != second
    assert os.getpid() in first | second


def test_the_share_of_a_process_that_dies_is_done_here():
    here = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return -item

    assert side_by_side(work, [1, 2, 3, 4], 3) == [-1, -2, -3, -4]


def test_an_error_here_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch):
    here, fork = os.getpid(), os.fork
    started: list[int] = []

    def recorded() -> int:
        pid = fork()
        started.append(pid)
        return pid

    def work(item: int) -> int:
        if os.getpid() == here:
            raise RuntimeError("here")
        signal.pause()
        return item

    monkeypatch.setattr(os, "fork", recorded)
    with pytest.raises(RuntimeError, match="here"):
        side_by_side(work, [1, 2, 3], 3)
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
