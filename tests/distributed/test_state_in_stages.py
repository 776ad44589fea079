"""Programs of stages update buffers, and statistics of batch norms, as one device does."""

import pytest
import staged_modules

from shardwright.runtime.spawn import run_ranks

NAMES = ("used and written again", "batch norm in front", "batch norm in eval mode")


@pytest.mark.distributed
def test_stages_have_the_state_of_one_device():
    for rank in run_ranks(staged_modules.furthest, 2, NAMES):
        assert rank == pytest.approx([0.0] * len(NAMES), abs=1e-9)
