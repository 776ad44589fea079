"""Schedules of pipelines: the published orders, and absence of deadlocks."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.dialects.pipe import Action, Slot
from shardwright.passes.stages.schedules import (
    Delivery,
    FragmentKind,
    PipelineShape,
    Policy,
    Work,
    WorkRun,
    order_of_runs,
    schedule,
)

POLICIES: tuple[Policy, ...] = ("gpipe", "1f1b", "eager-1f1b", "zero-bubble")


def pipeline(stages: int, skips: frozenset[tuple[int, int]] = frozenset()) -> tuple[list[Work], list[Delivery]]:
    """Return successive stages, with skips from earlier to later stages, and gradients sent back."""
    works = [Work(f"{kind}{stage}", stage, kind) for stage in range(stages) for kind in FragmentKind]
    edges = [*itertools.pairwise(range(stages)), *sorted(skips)]
    deliveries: list[Delivery] = []
    for source, target in edges:
        users = (f"forward{target}", f"weights{target}")
        deliveries.append(Delivery(f"h{source}{target}", f"forward{source}", target, users))
        gradients = (f"backward{source}", f"weights{source}")
        deliveries.append(Delivery(f"g{source}{target}", f"backward{target}", source, gradients))
    return works, list({each.label: each for each in deliveries}.values())


def simulate(program: list[list[Slot]], seconds: dict[FragmentKind, float], latency: float) -> float:
    """
    Return the time at which the last run ends; raise AssertionError if a stage waits for ever.

    A pair of stages shares one channel, whose messages are delivered in the order of their starts, which must be the
    same at both ends.
    """
    clocks, at = [0.0] * len(program), [0] * len(program)
    sent: dict[tuple[str, int], float] = {}
    received: dict[int, list[Slot]] = {stage: [] for stage in range(len(program))}
    starts = {stage: [s for s in slots if s.action is Action.START] for stage, slots in enumerate(program)}
    while any(position < len(program[stage]) for stage, position in enumerate(at)):
        moved = False
        for stage, slots in enumerate(program):
            while at[stage] < len(slots):
                slot = slots[at[stage]]
                key = (slot.label, slot.part)
                if slot.action is Action.RUN:
                    clocks[stage] += seconds[FragmentKind(slot.label.rstrip("0123456789"))]
                elif slot.action is Action.START:
                    if _is_sender(slot, stage):
                        sent[key] = clocks[stage] + latency
                    else:
                        received[stage].append(slot)
                else:
                    source = _sender(slot.label)
                    order = [s for s in starts[source] if _is_sender(s, source) and _target(s.label) == stage]
                    mine = [s for s in received[stage] if _sender(s.label) == source]
                    assert mine == order[: len(mine)], "the ends of a channel disagree"
                    assert Slot(Action.START, *key) in mine, "waits for what it has not started"
                    if key not in sent:
                        break
                    clocks[stage] = max(clocks[stage], sent[key])
                at[stage] += 1
                moved = True
        assert moved, "no stage can go on"
    return max(clocks)


def _sender(label: str) -> int:
    return int(label[1] if label[0] == "h" else label[2])


def _target(label: str) -> int:
    return int(label[2] if label[0] == "h" else label[1])


def _is_sender(slot: Slot, stage: int) -> bool:
    return _sender(slot.label) == stage


def text(policy: Policy, stage: int, stages: int, parts: int) -> str:
    """Return the runs of a stage except gradients of weights, as `F0 F1 B0`."""
    runs = order_of_runs(policy, stage, PipelineShape(stages, parts))
    return " ".join(f"{run.kind[0].upper()}{run.part}" for run in runs if run.kind is not FragmentKind.WEIGHTS)


def test_one_forward_one_backward_as_published():
    assert text("1f1b", 0, 3, 6) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    assert text("1f1b", 2, 3, 6) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"


def test_eager_runs_more_forwards_ahead_as_published():
    assert text("eager-1f1b", 0, 3, 6) == "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"
    assert text("eager-1f1b", 1, 3, 6) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    assert text("eager-1f1b", 2, 3, 6) == text("1f1b", 2, 3, 6)


def test_gpipe_runs_all_forwards_first():
    assert text("gpipe", 0, 2, 3) == "F0 F1 F2 B0 B1 B2"


def test_gradients_of_weights_run_at_once_except_with_eager_1f1b():
    forward, backward, weights = FragmentKind.FORWARD, FragmentKind.BACKWARD, FragmentKind.WEIGHTS
    shape = PipelineShape(2, 4)
    eager, plain = (order_of_runs(policy, 0, shape) for policy in ("eager-1f1b", "1f1b"))
    assert eager[3:7] == [WorkRun(backward, 0), WorkRun(forward, 3), WorkRun(weights, 0), WorkRun(backward, 1)]
    assert plain[2:5] == [WorkRun(backward, 0), WorkRun(weights, 0), WorkRun(forward, 2)]


def test_a_transfer_starts_after_its_source_and_one_run_before_its_use():
    works, deliveries = pipeline(2)
    first, second = schedule(works, deliveries, PipelineShape(2, 2), "1f1b")
    run, start, wait = (lambda label, part, action=action: Slot(action, label, part) for action in Action)
    assert first[:3] == [run("forward0", 0), start("h01", 0), start("g01", 0)]
    assert first[3:7] == [run("forward0", 1), start("h01", 1), wait("g01", 0), run("backward0", 0)]
    assert second[:4] == [start("h01", 0), wait("h01", 0), run("forward1", 0), run("backward1", 0)]
    assert second[4:7] == [start("g01", 0), start("h01", 1), run("weights1", 0)]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 9), st.sampled_from(POLICIES))
def test_every_schedule_ends(data: st.DataObject, stages: int, parts: int, policy: Policy):
    pairs = [(a, b) for a in range(stages) for b in range(a + 2, stages)]
    skips = data.draw(st.frozensets(st.sampled_from(pairs))) if pairs else frozenset[tuple[int, int]]()
    program = schedule(*pipeline(stages, skips), PipelineShape(stages, parts), policy)
    simulate(program, dict.fromkeys(FragmentKind, 1.0), 0.5)
    runs = [slot for slots in program for slot in slots if slot.action is Action.RUN]
    assert len(runs) == len(set(runs)) == 3 * stages * parts


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_eager_1f1b_is_as_fast_as_1f1b_and_faster_with_communication(stages: int):
    seconds = {FragmentKind.FORWARD: 1.0, FragmentKind.BACKWARD: 1.0, FragmentKind.WEIGHTS: 1.0}

    def time(policy: Policy, latency: float) -> float:
        return simulate(schedule(*pipeline(stages), PipelineShape(stages, 16), policy), seconds, latency)

    assert time("eager-1f1b", 0.0) <= time("1f1b", 0.0)
    assert time("eager-1f1b", 1.0) < time("1f1b", 1.0)
