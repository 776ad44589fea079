"""A plan for other devices is derived from the existing plan, and reports the state to move."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from boxes import relative

import shardwright
from shardwright.api.compile import PlanOptions, lower
from shardwright.api.plan_record import PlanRecord, state_placement
from shardwright.api.replan import replan
from shardwright.dialects.step import sharding_of
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
from shardwright.ir.state_moves import Box, Move
from shardwright.passes.search.constraints import pin_entries, strip_pins
from shardwright.passes.search.pin_file import load_pins
from shardwright.passes.step.step_view import step_views
from shardwright.tools.ir_input import load_module

STEP = Path(shardwright.__file__).parent / "examples" / "road" / "step.mlir"
THREE = """version = 1
mesh = ["gpu=3"]
[device.fast]
flops = { float32 = 4e9 }
memory_bandwidth = 20e9
memory = "4GiB"
[device.slow]
flops = { float32 = 1e9 }
memory_bandwidth = 5e9
memory = "4GiB"
[[place]]
device = "fast"
count = 2
[[place]]
device = "slow"
[link.gpu]
latency = 1e-7
bandwidth = 10e9
"""


def test_a_plan_of_four_becomes_one_of_three_unequal_devices():
    module, four = load_module(str(STEP)), parse_cluster(shipped_clusters()["local-4"])
    options = PlanOptions(mesh="4", stages=1, micro_batches=1, duplex="no")
    old = lower(module, four, options, name="road", step_spec=None, seconds={})
    assert old.undecided is not None
    chosen = old.report["chosen_candidate"]
    assert chosen is not None
    candidate = {**chosen}
    found = replan(old.undecided.clone(), PlanRecord.of(old.module, old.report), parse_cluster(THREE), [3, 1, 0])

    report = found.step.report
    assert report["ranks"] == 3
    assert report["chosen_candidate"] is not None
    assert report["chosen_candidate"]["choice"]["pins"] == candidate["choice"]["pins"]
    assert report["chosen_candidate"]["choice"]["weights"] == candidate["choice"]["weights"]
    assert len(report["candidates"]) == 1
    assert found.state.before == {0: 3, 1: 1, 2: 0}
    names = [spread.name for spread in state_placement(old.module)]
    assert [spread.name for spread in state_placement(found.step.module)] == names
    told = report.get("replan", {})
    assert told["state_bytes"] > 0
    assert told["moved_bytes"] + told["lost_bytes"] == found.state.moves.bound >= told["moved_bytes_bound"]


def test_the_state_moves_bitwise_from_the_old_plan_to_the_new_one():
    three, mixed = parse_cluster(THREE), parse_cluster(shipped_clusters()["mixed-4"])
    options = PlanOptions(mesh="3", stages=1, micro_batches=1, duplex="no")
    searched = lower(load_module(str(STEP)), three, options, name="road", step_spec=None, seconds={})
    assert searched.undecided is not None
    # ZeRO-3 instead of the fastest plan: everything is split, so that much has to be moved.
    zero = PlanOptions(algorithm="fixed", pins="zero3", ratios="balanced")
    old = lower(load_module(str(STEP)), three, zero, name="road", step_spec=None, seconds={})
    record = PlanRecord.of(old.module, searched.report)
    found = replan(searched.undecided.clone(), record, mixed)
    before, after = state_placement(old.module), {each.name: each for each in state_placement(found.step.module)}

    moved = defaultdict[tuple[str, int], list[Move]](list)
    for move in found.state.moves.moves:
        moved[move.name, move.receiver].append(move)
    assert not found.state.moves.lost
    for source in before:
        shape = [max(box[dim][1] for box in source.boxes.values()) for dim in range(len(source.boxes[0]))]
        whole = torch.randn(shape)
        held = {rank: whole[_slices(box)].clone() for rank, box in source.boxes.items()}
        for rank, box in after[source.name].boxes.items():
            arrived = torch.full_like(whole[_slices(box)], torch.nan)
            if rank in found.state.before and (mine := _common(box, source.boxes[found.state.before[rank]])):
                there = held[found.state.before[rank]][relative(mine, source.boxes[found.state.before[rank]])]
                arrived[relative(mine, box)] = there
            for move in moved[source.name, rank]:
                sent = held[move.sender][relative(move.box, source.boxes[move.sender])]
                arrived[relative(move.box, box)] = sent
            assert torch.equal(arrived, whole[_slices(box)]), (source.name, rank)
    assert found.state.moves.bytes == found.state.least > 0


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*dim) for dim in box)


def _common(one: Box, other: Box) -> Box | None:
    found = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return found if all(begin < end for begin, end in found) else None


def unequal(kinds: str) -> Cluster:
    """Return a cluster with a device for each letter: fast, or so slow that a step is faster without it."""
    header = THREE[: THREE.index("[[place]]")].replace("gpu=3", f"gpu={len(kinds)}")
    header = header.replace("[device.slow]\n", "[device.slow]\nlaunch = 1e-3\n").replace("1e9 }", "1e7 }")
    places = "".join(f'[[place]]\ndevice = "{"fast" if kind == "f" else "slow"}"\n' for kind in kinds)
    return parse_cluster(f"{header}{places}{THREE[THREE.index('[link') :]}")


@pytest.mark.parametrize(
    ("kinds", "ranks"),
    [
        ("ffs", [0, 1]),
        ("fsfsf", [0, 2, 4]),
        ("fffs", [0, 1, 2]),
        ("sffffs", [1, 2, 3, 4]),
        ("sfs", [1]),
        ("ff", None),
        ("ss", None),
    ],
)
def test_a_plan_without_slow_devices_is_put_on_all_devices_of_the_kind_that_it_uses(
    kinds: str, ranks: list[int] | None
):
    old = lower(load_module(str(STEP)), unequal("fffs"), PlanOptions(), name="road", step_spec=None, seconds={})
    assert old.undecided is not None
    assert old.report["idle"] == [3]
    cluster = unequal(kinds)
    found = replan(old.undecided.clone(), PlanRecord.of(old.module, old.report), cluster).step.report
    assert found["chosen_candidate"] is not None
    assert found["chosen_candidate"].get("ranks") == ranks
    assert found["idle"] == [rank for rank in range(cluster.mesh.device_count) if ranks and rank not in ranks]
    assert len(found["candidates"]) == 1


def test_as_many_devices_of_a_kind_with_idle_devices_are_used_as_before():
    old = lower(load_module(str(STEP)), unequal("fffs"), PlanOptions(), name="road", step_spec=None, seconds={})
    assert old.undecided is not None
    record = PlanRecord.of(old.module, old.report)
    one_left_out = replace(record, cluster=unequal("ffffs"))
    found = replan(old.undecided.clone(), one_left_out, unequal("sfffffs")).step.report
    assert found["idle"] == [0, 4, 5, 6]


def test_a_remaining_rank_must_exist_in_the_old_plan():
    module, four = load_module(str(STEP)), parse_cluster(shipped_clusters()["local-4"])
    old = lower(module, four, PlanOptions(mesh="4", stages=1, micro_batches=1), name="road", step_spec=None, seconds={})
    assert old.undecided is not None
    with pytest.raises(ValueError, match=r"remaining ranks .* are invalid, expected different ranks below 4"):
        replan(old.undecided, PlanRecord.of(old.module, old.report), parse_cluster(THREE), [0, 1, 7])


@pytest.mark.parametrize("kept", ["the IR", "the record"])
def test_pins_stay_on_other_devices(kept: str):
    module, four = load_module(str(STEP)), parse_cluster(shipped_clusters()["local-4"])
    pins = '[[pin]]\npreset = "zero3"\n[[pin]]\nvalue = "2.weight"\nsharding = \'[{}, {"gpu"}]\'\n'
    options = PlanOptions("auto", pins, mesh="4", stages=1, micro_batches=1, duplex="no")
    old = lower(module, four, options, name="road", step_spec=None, seconds={})
    assert old.undecided is not None
    undecided = old.undecided.clone()
    if kept == "the record":
        strip_pins(undecided)
    found = replan(undecided, PlanRecord.of(old.module, old.report), parse_cluster(THREE))
    ((view, _),) = step_views(found.step.module)
    assert pin_entries(view.func) == load_pins(pins)
    homes = {given.name: sharding_of(given.argument) for given in view.inputs}
    assert [dim.axes for dim in homes["2.weight"].dims] == [(), ("gpu",)]
    assert [dim.axes for dim in homes["0.weight"].dims] == [("gpu",), ()]
