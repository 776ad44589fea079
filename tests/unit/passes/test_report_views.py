"""The views of a simulated step that a report draws: bars, memory by role, and bytes between ranks."""

import numpy as np
import pytest
from road import road

from shardwright.passes.analysis.memory_roles import MemoryRole
from shardwright.passes.analysis.simulation.bars import TimelineBar, bars_of, joined
from shardwright.passes.analysis.simulation.held import HeldBytes
from shardwright.passes.analysis.simulation.pairs import bytes_between
from shardwright.passes.analysis.simulation.results import COMPUTE, Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulate_module(road())[0]


def test_bars_have_the_seconds_of_their_streams(simulation: Simulation):
    for each in simulation.classes:
        bars = bars_of(simulation, each)
        seconds = {stream: sum(bar.end - bar.start for bar in found) for stream, found in bars.items()}
        assert seconds == pytest.approx(dict(simulation.busy_seconds(each.number)))
        waited = sum(bar.waited for stream, found in bars.items() if stream != COMPUTE for bar in found)
        assert waited == pytest.approx(sum(simulation.waited(each.number).values()))


def test_neighbours_of_one_kind_and_label_are_joined():
    bars = [
        TimelineBar("forward", 0, 1, "a"),
        TimelineBar("forward", 1, 2, "a"),
        TimelineBar("forward", 2, 3, "b"),
        TimelineBar("forward", 4, 5, "b"),
    ]
    assert list(joined(bars)) == [TimelineBar("forward", 0, 2, "a", 2), *bars[2:]]
    assert list(joined(bars, gap=1.0)) == [TimelineBar("forward", 0, 2, "a", 2), TimelineBar("forward", 2, 5, "b", 2)]


def test_memory_by_role_adds_up(simulation: Simulation):
    held = HeldBytes(simulation)
    for each in simulation.classes:
        times, roles = held.by_role(each)
        total = np.sum(list(roles.values()), axis=0)
        changes = {moment.time: moment.bytes for moment in held.over_time(each)}
        assert total.max() == held.peak(each)
        assert [total[times.index(time)] for time in changes] == list(changes.values())
        assert min(roles[MemoryRole.PARAMETERS]) > 0


def test_ranks_send_the_bytes_of_their_collectives_and_transfers(simulation: Simulation):
    sent = bytes_between(simulation)
    assert sent.shape == (4, 4)
    assert not sent.diagonal().any()
    for each in simulation.classes:
        # The last rank of a chain of a transfer passes nothing on.
        collectives = sum(size for kind, size in simulation.sent_bytes(each.number).items() if kind != "transfer")
        assert all(sent[rank].sum() >= collectives * (1 - 1e-9) for rank in each.ranks)
    transfers = {(run.traffic, run.part) for run in simulation.execution.traffic if run.traffic.edges}
    # A receiver passes a part on to other ranks of its stage.
    edges = (edge for traffic, _ in transfers for edge in traffic.edges)
    moved = sum(size for sender, receiver, size in edges if (sender < 2) != (receiver < 2))
    assert sent[:2, 2:].sum() + sent[2:, :2].sum() == pytest.approx(moved)
