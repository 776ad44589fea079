"""A short calibration gives numbers of the right size."""

import pytest

from shardwright.runtime.calibrate import measure

pytestmark = pytest.mark.distributed


def test_measure():
    found = measure(2, seconds=1.0)
    assert found["world_size"] == 2
    assert found["flops"].keys() == {"float32", "float64"}
    assert all(1e8 < rate < 1e14 for rate in found["flops"].values())
    assert 1e8 < found["memory_bandwidth"] < 1e13
    assert 1e-8 < found["launch"] < 1e-3
    kinds = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    assert found["collectives"].keys() == kinds
    for costs in found["collectives"].values():
        assert 0 <= costs["alpha"] < 1
        assert 0 <= costs["beta"] < 1e-5
