"""Time and memory of pipelines: closed forms of the fixed orders, and list scheduling compared with them."""

import itertools
from math import inf
from random import Random

import pytest
from _outline import estimate
from pipelines_at_random import deliveries_of, timed, timed_at_random, works_of

from shardwright.dialects.pipe import Action, Slot
from shardwright.passes.stages.estimate import PipelineTimes, in_flight
from shardwright.passes.stages.list_schedule import URGENCIES, Holding, ListSchedule, list_schedule
from shardwright.passes.stages.schedules import FragmentKind, PipelineShape, Policy, policies, schedule, with_transfers

FORWARD, BACKWARD, WEIGHTS = FragmentKind
SECONDS = {
    "alike": {FORWARD: 1.0, BACKWARD: 1.0, WEIGHTS: 1.0},
    "usual": {FORWARD: 1.0, BACKWARD: 1.25, WEIGHTS: 0.75},
    "slow backward": {FORWARD: 1.0, BACKWARD: 1.5, WEIGHTS: 0.5},
}
SHAPES = [
    PipelineShape(stages, parts, chunks)
    for stages, parts in itertools.product((2, 3, 4, 6), (6, 8, 12, 24))
    for chunks in (1, 2, 3)
    if parts >= stages
]


def fixed(policy: Policy, times: PipelineTimes, shape: PipelineShape) -> list[list[Slot]]:
    return schedule(times.works, times.deliveries, shape, policy)


def best_listed(times: PipelineTimes, holding: Holding) -> ListSchedule:
    return min((list_schedule(times, holding, urgency) for urgency in URGENCIES), key=lambda each: each.seconds)


@pytest.mark.parametrize("kinds", SECONDS)
def test_bubbles_equal_the_closed_forms(kinds: str):
    """Gradients of inputs are sent back at once, so gradients of weights fill bubbles only in ZB-H1."""
    seconds = SECONDS[kinds]
    bubble = seconds[FORWARD] + seconds[BACKWARD]
    for shape in SHAPES:
        for policy in policies(shape):
            if policy == "gpipe" and shape.chunks > 1:
                continue
            times = timed(shape, seconds)
            found = estimate(fixed(policy, times, shape), times).seconds
            work = shape.parts * shape.chunks * sum(seconds.values())
            each = bubble - seconds[WEIGHTS] if policy == "zero-bubble" else bubble
            assert found == pytest.approx(work + (shape.stages - 1) * each), (shape, policy)


def test_parts_in_flight_equal_the_closed_forms():
    for shape in SHAPES:
        works, deliveries, n, total = works_of(shape), deliveries_of(shape), shape.stages, shape.parts * shape.chunks
        for policy in policies(shape):
            slots = schedule(works, deliveries, shape, policy)
            found = [in_flight(mine, works) for mine in slots]
            held = {
                "gpipe": [total] * n,
                "1f1b": [n - stage for stage in range(n)],
                # The first stage has no gradients of weights after the next forward.
                "eager-1f1b": [2 * (n - stage) - (stage == 0) for stage in range(n)],
                "zero-bubble": [n] * n,
                "interleaved-1f1b": [2 * (n - stage - 1) + (shape.chunks - 1) * n + 1 for stage in range(n)],
            }
            assert found == [min(total, each) for each in held[policy]], (shape, policy)


def test_interleaved_has_a_bubble_of_a_chunk_instead_of_a_stage():
    seconds = SECONDS["alike"]
    whole = {kind: 2 * each for kind, each in seconds.items()}
    for stages in (2, 3, 4):
        one, two = PipelineShape(stages, 12), PipelineShape(stages, 12, 2)
        single, double = timed(one, whole), timed(two, seconds)
        plain = estimate(fixed("1f1b", single, one), single).seconds
        interleaved = estimate(fixed("interleaved-1f1b", double, two), double).seconds
        work = 12 * sum(whole.values())
        assert plain - work == pytest.approx(2 * (interleaved - work))


@pytest.mark.parametrize(("chunks", "count", "most"), [(1, 100, 1.0), (2, 20, 1.01)])
def test_list_scheduling_is_never_slower_than_the_best_fixed_order(chunks: int, count: int, most: float):
    """With several chunks it may be slightly slower, so the fixed orders remain candidates."""
    draw = Random(0)
    for _ in range(count):
        shape = PipelineShape(draw.choice((2, 3, 4)), draw.choice((4, 6, 8)), chunks)
        times = timed_at_random(draw, shape)
        best = min(estimate(fixed(policy, times, shape), times).seconds for policy in policies(shape))
        listed = best_listed(times, Holding({}, [inf] * shape.stages))
        assert listed.seconds <= best * most * (1 + 1e-9), (shape, times)
        slots = with_transfers(listed.runs, times.deliveries, listed.receive)
        assert estimate(slots, times).seconds == pytest.approx(listed.seconds), "nobody waits for a receiver"


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_without_a_memory_limit_list_scheduling_waits_only_for_the_first_part(stages: int):
    """Each stage works without a break after its first part arrives: no order can be faster."""
    shape, crossing = PipelineShape(stages, 12), 0.2
    times = timed(shape, SECONDS["usual"], crossing)
    listed = best_listed(times, Holding({}, [inf] * stages, parts=2 * stages))
    work = 12 * sum(SECONDS["usual"].values())
    assert listed.seconds == pytest.approx(work + (stages - 1) * (SECONDS["usual"][FORWARD] + crossing))


def test_list_scheduling_respects_the_memory_of_stages():
    draw = Random(1)
    for _ in range(12):
        shape = PipelineShape(draw.choice((2, 3, 4)), 6, draw.choice((1, 2)))
        times = timed_at_random(draw, shape)
        parts = draw.choice((1, 2, 3)) * shape.chunks
        taken = {work.label: 1.0 if work.kind is FORWARD else 0.0 for work in times.works}
        last = {(work.stage, work.chunk): work.label for work in times.works}
        taken |= dict.fromkeys(last.values(), -1.0)
        for holding in (Holding({}, [inf] * shape.stages, parts), Holding(taken, [parts] * shape.stages)):
            for mine in best_listed(times, holding).runs:
                assert in_flight(mine, times.works) <= parts


def test_every_run_is_scheduled_once_without_a_deadlock():
    draw = Random(2)
    for chunks, urgency in itertools.product((1, 2), URGENCIES):
        shape = PipelineShape(3, 5, chunks)
        times = timed_at_random(draw, shape)
        listed = list_schedule(times, Holding({}, [inf] * 3, 2), urgency)
        runs = [slot for mine in listed.runs for slot in mine]
        assert len(runs) == len(set(runs)) == len(times.works) * shape.parts
        estimate(with_transfers(listed.runs, times.deliveries, listed.receive), times)


def test_stages_that_wait_for_each_other_are_an_error():
    shape = PipelineShape(2, 1)
    times = timed(shape, SECONDS["alike"])
    slots = fixed("1f1b", times, shape)
    begun = [[slot for slot in slots[0] if slot != Slot(Action.START, "h0.0", 0)], slots[1]]
    with pytest.raises(ValueError, match="wait for one another"):
        estimate(begun, times)
