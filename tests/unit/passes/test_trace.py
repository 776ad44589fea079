"""The trace of a simulated step follows the Trace Event Format of Perfetto and Chrome."""

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from road import road

from shardwright.passes.analysis.simulation.held import HeldBytes
from shardwright.passes.analysis.simulation.results import Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.analysis.simulation.trace import trace

# Phase -> the fields that its events must have in addition to pid, tid, ts, ph and name.
FIELDS = {
    "M": {"args": dict},
    "X": {"dur": float, "cat": str, "args": dict},
    "C": {"args": dict},
    "s": {"id": int, "cat": str},
    "f": {"id": int, "cat": str},
}
METADATA = {f"{what}_{field}": field for what in ("process", "thread") for field in ("name", "sort_index")}


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    """Return the simulation of the example `road`."""
    return simulate_module(road())[0]


@pytest.fixture(scope="module")
def events(simulation: Simulation) -> list[dict[str, Any]]:
    """Return the events of its trace, as read from a file."""
    return json.loads(json.dumps(trace(simulation), allow_nan=False))["traceEvents"]


def test_every_event_has_the_fields_of_its_phase(events: list[dict[str, Any]]):
    for event in events:
        wanted = {"pid": int, "tid": int, "ts": float, "name": str, **FIELDS[event["ph"]]}
        for field, kind in wanted.items():
            assert isinstance(event[field], kind), (field, event)
        assert set(event) <= {*wanted, "ph", "bp"}
        assert event["ts"] >= 0.0
        assert event.get("dur", 0.0) >= 0.0
        assert event["name"]
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


def test_time_goes_forward_and_slices_of_a_thread_do_not_overlap(events: list[dict[str, Any]]):
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    threads: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for slices in threads.values():
        for before, after in itertools.pairwise(slices):
            # Perfetto rounds each time to whole nanoseconds.
            for whole in (int, round):
                begun, lasted, then = (whole(1e3 * time) for time in (before["ts"], before["dur"], after["ts"]))
                assert begun + lasted <= then


def test_every_thread_has_a_name_and_every_arrow_two_ends(events: list[dict[str, Any]], simulation: Simulation):
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named >= {(e["pid"], e["tid"]) for e in events if e["ph"] in ("X", "s", "f")}
    assert {e["pid"] for e in events} == {each.number for each in simulation.classes}
    assert len({thread for _, thread in named}) == len(named), "Perfetto tells threads of different processes by number"
    ends = {phase: sorted(e["id"] for e in events if e["ph"] == phase) for phase in "sf"}
    assert ends["s"] == ends["f"]
    assert len(set(ends["s"])) == len(ends["s"]) > 0
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    arrows = [(starts[e["id"]], e) for e in events if e["ph"] == "f"]
    assert all(start["ts"] <= end["ts"] for start, end in arrows)
    assert any(start["pid"] != end["pid"] for start, end in arrows), "transfers lead from rank to rank"
    assert any(start["pid"] == end["pid"] for start, end in arrows), "starts lead to what waited for them"


def test_slices_have_names_and_lines_of_the_model(events: list[dict[str, Any]]):
    slices = {e["name"]: e for e in events if e["ph"] == "X"}
    product = slices["0  aten.addmm"]
    assert product["cat"] == "forward"
    assert product["args"]["flops"] > 0
    assert "64" in product["args"]["results"][0]
    assert "torch/nn/modules/linear.py:" in product["args"]["source"]
    assert {"forward", "backward", "update", "exposed", "transfer"} <= {e["cat"] for e in events if e["ph"] == "X"}


def test_the_counter_shows_the_memory_in_use(events: list[dict[str, Any]], simulation: Simulation):
    held = HeldBytes(simulation)
    for each in simulation.classes:
        counts = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == each.number]
        assert max(counts) == held.peak(each)
