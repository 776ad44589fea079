"""A plan for other devices is made of the one that there is, and says what has to be moved."""

from pathlib import Path

import pytest

import shardwright
from shardwright.api.compile import PlanOptions, lower
from shardwright.api.replan import replan
from shardwright.api.state_placement import state_placement
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
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
    candidate = {**old.report["chosen_candidate"]}
    found = replan(old.undecided.clone(), old.module, old.report, parse_cluster(THREE), [3, 1, 0])

    report = found.step.report
    assert report["ranks"] == 3
    assert report["chosen_candidate"]["choice"]["name"] == candidate["choice"]["name"]
    assert len(report["candidates"]) == 1
    assert found.before == {0: 3, 1: 1, 2: 0}
    names = [spread.name for spread in state_placement(old.module)]
    assert [spread.name for spread in state_placement(found.step.module)] == names
    assert report["replan"]["state_bytes"] > 0
    if not report["replan"]["lost"]:
        assert report["replan"]["moved_bytes"] == report["replan"]["moved_bytes_bound"]


def test_a_rank_that_there_was_not_cannot_remain():
    module, four = load_module(str(STEP)), parse_cluster(shipped_clusters()["local-4"])
    old = lower(module, four, PlanOptions(mesh="4", stages=1, micro_batches=1), name="road", step_spec=None, seconds={})
    assert old.undecided is not None
    with pytest.raises(ValueError, match="not each one of the 4"):
        replan(old.undecided, old.module, old.report, parse_cluster(THREE), [0, 1, 7])
