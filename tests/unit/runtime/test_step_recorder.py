"""The record of a rank's steps: spans of computation and of messages in flight; and its files."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from shardwright.ir.measured_steps import (
    MeasuredFileError,
    MeasuredRank,
    MeasuredSteps,
    MeasuredTraffic,
    aligned,
    busiest,
)
from shardwright.ir.overlap import Overlap
from shardwright.ir.overlap_table import measured_table
from shardwright.runtime.layer_ranges import LayerRange
from shardwright.runtime.measured import _together
from shardwright.runtime.plan import PlanError
from shardwright.runtime.requests import Pending, Request
from shardwright.runtime.step_recorder import RECORDING, StepRecorder, computed

ONE = torch.ones(4)


def traffic(key: str, start: float, end: float | None, kind: str = "all_reduce", phase: str = "backward"):
    return MeasuredTraffic(kind, "gpu", key, "fc", phase, 16, start, end)


def rank(number: int, *sent: MeasuredTraffic, end: float = 10.0, waits: tuple[tuple[float, float], ...] = ()):
    phases = [("forward", 0.0), ("backward", 4.0)]
    return MeasuredRank(number, None, 0.0, end, computed(phases, end, waits), sent)


def test_a_rank_computes_while_it_does_not_wait():
    found = computed([("forward", 0.0), ("backward", 4.0), ("update", 8.0)], 10.0, [(3.0, 5.0), (9.0, 9.5)])
    assert found == {
        "forward": ((0.0, 3.0),),
        "backward": ((5.0, 8.0),),
        "update": ((8.0, 9.0), (9.5, 10.0)),
    }
    # A phase that occurs again, as in a schedule, has several spans.
    again = computed([("forward", 0.0), ("backward", 1.0), ("forward", 2.0)], 3.0, [])
    assert again["forward"] == ((0.0, 1.0), (2.0, 3.0))


def test_traffic_begins_when_the_last_rank_starts():
    step = aligned([rank(0, traffic("gpu 0,1 0", 1.0, 6.0)), rank(1, traffic("gpu 0,1 0", 5.0, 6.5))])
    assert [(each.traffic[0].start, each.traffic[0].end) for each in step] == [(5.0, 6.0), (5.0, 6.5)]
    assert step[0].overlaps["backward", "gpu"] == Overlap(6.0, 1.0, 1.0)


def test_a_transfer_ends_where_it_arrives():
    sent = traffic("h 0", 1.0, None, "transfer", "forward")
    step = aligned([rank(0, sent), rank(1, replace(sent, start=2.0, end=5.0), waits=((2.0, 5.0),))])
    assert [(each.traffic[0].start, each.traffic[0].end) for each in step] == [(2.0, 5.0)] * 2
    assert step[0].overlaps["all", "all"] == Overlap(10.0, 3.0, 3.0)
    assert step[1].overlaps["all", "all"] == Overlap(7.0, 3.0, 0.0)


def test_a_transfer_that_arrives_after_the_step_counts_until_its_end():
    sent = traffic("h 0", 8.0, None, "transfer", "backward")
    step = aligned([rank(0, sent), rank(1, replace(sent, end=14.0), end=15.0)])
    assert step[0].traffic[0].end == 14.0
    assert step[0].overlaps["all", "all"].communication == 2.0
    assert step[1].overlaps["all", "all"].communication == 6.0


def test_a_file_reads_back():
    sent = traffic("a", 1.0, 2.0)
    steps = tuple(aligned([rank(0, sent, end=end), rank(1, end=end - 1)]) for end in (9.0, 12.0, 10.0))
    made = MeasuredSteps("net", steps)
    assert MeasuredSteps.parse(made.text()) == made
    assert made.middle == steps[2]
    assert busiest(made.middle) == {None: steps[2][0]}
    table = measured_table(made).splitlines()
    assert table[0] == "net, measured: 10 s, the median of 3 steps"
    assert table[-1].split() == ["rank", "0", "all", "all", "10", "s", "1", "s", "1", "s", "0", "us", "100%"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON"),
        ("[]", "it has an invalid entry"),
        ("{}", "it has no 'kind'"),
        ('{"kind": "a", "version": 1}', 'it has no "kind": "shardwright measured steps"'),
        ('{"kind": "shardwright measured steps", "version": 1, "name": "n", "steps": []}', "it holds no step"),
        ('{"kind": "shardwright measured steps", "version": 1, "name": "n", "steps": [[{"rank": 0}]]}', "it has no"),
        ('{"kind": "shardwright measured steps", "version": 1, "name": "n", "steps": [[7]]}', "invalid entry"),
    ],
)
def test_another_file_is_refused(text: str, why: str):
    with pytest.raises(MeasuredFileError, match=why):
        MeasuredSteps.parse(text)


@pytest.mark.parametrize(("field", "value"), [("start", 99.0), ("phase", "lunch"), ("bytes", "many"), ("end", "nan")])
def test_a_changed_file_is_refused(field: str, value: object):
    made = json.loads(MeasuredSteps("net", (aligned([rank(0, traffic("a", 1.0, 2.0))]),)).text())
    made["steps"][0][0]["traffic"][0][field] = value
    with pytest.raises(MeasuredFileError, match="it has an invalid entry"):
        MeasuredSteps.parse(json.dumps(made))


class Work:
    """Work that ends when another thread sets `over`."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.waited = 0

    def wait(self) -> None:
        self.waited += 1
        assert self.over.wait(10)


def recorder() -> StepRecorder:
    return StepRecorder(torch.device("cpu"), 0, [(0, 1)])


def test_work_that_is_over_before_its_wait_is_hidden():
    made, work = recorder(), Work()
    request = Request("all_gather", (ONE,), ("gpu",))
    with made.recording(), made.step():
        with LayerRange("backward fc"):
            pending = made.collective(request, (0, 1), lambda: Pending([work], lambda: [ONE]), now=False)
        time.sleep(0.05)
        work.over.set()
        now = made._now
        while now is None or now.calls[0].end is None:
            time.sleep(0.001)
        assert pending.wait() == (ONE,)
    (step,) = made.steps
    (sent,) = step.traffic
    assert (sent.kind, sent.channel, sent.key, sent.where, sent.phase) == (
        "all_gather",
        "gpu",
        "gpu 0,1 0",
        "backward fc",
        "backward",
    )
    assert sent.bytes == 16
    # Gloo's handle of a receive may be waited for only once.
    assert work.waited == 1
    assert sent.end is not None
    assert sent.end - sent.start >= 0.05
    assert step.overlaps["backward", "gpu"].ratio > 0.99
    assert set(step.computed) == {"forward", "backward"}
    assert RECORDING.recorder is None


@pytest.mark.parametrize("now", [True, False])
def test_work_that_is_waited_for_is_exposed(now: bool):
    made, work = recorder(), Work()
    request = Request("all_reduce", (ONE,), ("gpu",))
    with made.recording(), made.step():
        pending = made.collective(request, (0, 1), lambda: Pending([work], lambda: [ONE]), now=now)
        threading.Timer(0.2, work.over.set).start()
        pending.wait()
    overlap = made.steps[0].overlaps["forward", "gpu"]
    assert overlap.communication >= 0.19
    # The exposed time depends on how soon this thread begins to wait.
    assert 0 < overlap.exposed <= overlap.communication


def test_an_error_reaches_the_waiting_thread():
    made = recorder()

    class Broken(Work):
        def wait(self) -> None:
            raise RuntimeError("connection closed by peer")

    request = Request("all_reduce", (ONE,), ("gpu",))
    with made.recording(), pytest.raises(RuntimeError, match="closed by peer"), made.step():
        made.collective(request, (0, 1), lambda: Pending([Broken()], lambda: []), now=False).wait()
    assert made.steps == []


def test_no_thread_is_left_at_the_end():
    """A thread that still runs at the end of the process would abort it."""
    made = recorder()

    class Slow(Work):
        def wait(self) -> None:
            time.sleep(0.1)

    request = Request("all_reduce", (ONE,), ("gpu",))
    with made.recording(), made.step():
        made.collective(request, (0, 1), lambda: Pending([Slow()], lambda: [ONE]), now=False)
    assert not any("recorder" in each.name for each in threading.enumerate())


def test_work_outside_of_a_step_is_not_recorded():
    made, work = recorder(), Work()
    work.over.set()
    request = Request("all_reduce", (ONE,), ("gpu",))
    pending = Pending([work], lambda: [ONE])
    with made.recording():
        assert made.collective(request, (0, 1), lambda: pending, now=True) is pending
    assert made.steps == []


class Device:
    """A stand-in for `torch.cuda` whose streams have separate clocks, in milliseconds."""

    def __init__(self) -> None:
        self.main = self.current = self.Stream(None)
        self.synchronized = 0

    class Stream:
        def __init__(self, device: object) -> None:
            self.at = 0.0

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at = -1.0

        def record(self, stream: Any) -> None:
            self.at = stream.at

        def elapsed_time(self, other: Any) -> float:
            return other.at - self.at

    def current_stream(self, device: object) -> Any:
        return self.current

    def synchronize(self, device: object) -> None:
        self.synchronized += 1

    def stream(self, stream: Any) -> Any:
        device, before = self, self.current

        class On:
            def __enter__(self) -> None:
                device.current = stream

            def __exit__(self, *error: object) -> None:
                device.current = before

        return On()


def test_on_gpus_events_are_recorded_and_the_host_waits_only_at_the_ends(monkeypatch: pytest.MonkeyPatch):
    device = Device()
    for name in ("Stream", "Event", "current_stream", "synchronize", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    made = StepRecorder(torch.device("cuda", 0), 0, [(0, 1)])

    class Kernel:
        """A kernel of NCCL that ends at 30 ms."""

        def wait(self) -> None:
            device.current.at = max(device.current.at, 30.0)

    request = Request("all_reduce", (ONE,), ("gpu",))
    with made.recording(), made.step():
        device.main.at = 10.0
        pending = made.collective(request, (0, 1), lambda: Pending([Kernel()], lambda: [ONE]), now=False)
        # The thread that follows the kernel does not delay the main stream.
        assert (device.main.at, device.synchronized) == (10.0, 1)
        device.main.at = 25.0
        pending.wait()
        device.main.at += 10.0
    assert device.synchronized == 2
    overlap = made.steps[0].overlaps["forward", "gpu"]
    seconds = (overlap.compute, overlap.communication, overlap.overlapped)
    assert seconds == pytest.approx((0.035, 0.02, 0.015))


def test_different_numbers_of_measured_steps_are_refused():
    with pytest.raises(PlanError, match="the ranks measured 1 or 2 steps"):
        _together("net", [[rank(0)], [rank(1), rank(1)]], [0.0, 0.0])
    found = _together("net", [[rank(0)], [rank(1)]], [0.0, 5.0])
    # The clock of rank 1 is ahead by 5 s, so its step began before rank 0's.
    assert found is not None
    assert [(each.start, each.end) for each in found.steps[0]] == [(5.0, 15.0), (0.0, 10.0)]
