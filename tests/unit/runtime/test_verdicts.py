"""The message of a verdict is written once; if the finder dies before that, another rank writes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from shardwright.runtime.judge import Verdict
from shardwright.runtime.verdicts import VERDICT, Verdicts

FOUND, OTHER = Verdict((1,), "rank 1 is hung"), Verdict((), "rank 2 failed")


class Died(Exception):
    """A stand-in for SIGKILL."""


def ranks(count: int, dead: set[int], patience: float = 30.0) -> list[Verdicts]:
    store = HashStore()
    made = [Verdicts(store, rank, patience, dead.__contains__) for rank in range(count)]
    made[0].open()
    return made


def together(*calls: Callable[[], Verdict]) -> list[Verdict]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def test_one_of_two_verdicts_holds_and_is_written_before_any_rank_ends():
    first, second = ranks(2, set())
    written: list[Verdict] = []

    def late(verdict: Verdict) -> None:
        time.sleep(0.2)
        written.append(verdict)

    stood = together(lambda: first.claim(FOUND, late), lambda: second.claim(OTHER, late))
    assert stood == written * 2
    assert first.store.get(VERDICT)


def test_if_the_finder_dies_before_writing_one_other_rank_writes():
    dead: set[int] = set()
    finder, *others = ranks(4, dead)
    written: list[Verdict] = []

    def dies(_: Verdict) -> None:
        dead.add(0)
        raise Died

    with pytest.raises(Died):
        finder.claim(FOUND, dies)
    assert together(*(partial(each.await_told, written.append) for each in others)) == [FOUND] * 3
    assert written == [FOUND]


def test_if_the_second_writer_dies_too_the_third_writes():
    dead = {0}
    finder, second, third = ranks(3, dead)
    written: list[Verdict] = []

    def dies(_: Verdict) -> None:
        raise Died

    with pytest.raises(Died):
        finder.claim(FOUND, dies)
    with pytest.raises(Died):
        second.await_told(dies)
    dead.add(1)
    assert third.await_told(written.append) == FOUND
    assert written == [FOUND]


def test_a_silent_finder_on_another_machine_is_replaced_after_a_timeout():
    finder, other = ranks(2, set(), patience=0.1)
    written: list[Verdict] = []
    with pytest.raises(Died):
        finder.claim(FOUND, _dies)
    assert other.await_told(written.append) == FOUND
    assert written == [FOUND]


def test_the_rank_with_the_store_ends_last():
    holder, *others = ranks(3, set())
    ended: list[int] = []

    def end(each: Verdicts) -> None:
        time.sleep(0.1)
        ended.append(each.rank)
        each.end(0, 0.0)

    threads = [threading.Thread(target=end, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    holder.end(2, 30.0)
    assert sorted(ended) == [1, 2]
    for thread in threads:
        thread.join()


def _dies(_: Verdict) -> None:
    raise Died
