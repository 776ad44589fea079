"""What holds for every test."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is loaded: on tensors this small its threads only wait for one another, ten times as long as
# the work takes where tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

_SEVERAL_PROCESSES = {"distributed", "end_to_end"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that accepts emitted programs as they are now."""
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew")


# First, for xdist reads the groups in a hook of its own.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that start several processes on one worker: two at a time would share the same cores."""
    for item in items:
        folder = Path(item.path).relative_to(config.rootpath).parts[0]
        if folder in _SEVERAL_PROCESSES:
            item.add_marker(pytest.mark.xdist_group("several-processes"))
