"""Programs of stages update buffers, and statistics of batch norms, as one device does."""

import pytest
import staged_modules
from staged_modules import ON_RANKS

from shardwright.runtime.spawn import run_ranks


@pytest.mark.distributed
def test_stages_have_the_state_of_one_device():
    for rank in run_ranks(staged_modules.furthest, 2, ON_RANKS):
        assert rank == pytest.approx([0.0] * len(ON_RANKS), abs=1e-9)
