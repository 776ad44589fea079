"""What holds for every test."""

import os
import tempfile

import pytest
from hypothesis import settings
from rank_server import start_server

# Before torch is loaded: on tensors this small its threads only wait for one another, ten times as long as
# the work takes where tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is kept between runs is kept within one run of the tests.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="shardwright-tests-")

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

OPTIONAL = ("thorough", "benchmarks")
"""The markers of tests that run only where the option of their name is given."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags that accept emitted programs as they are now, and that leave nothing out."""
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew")
    for marker in OPTIONAL:
        parser.addoption(f"--{marker}", action="store_true", help=f"run the tests marked {marker}, too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first test on several processes, start the server that forks them, with everything imported."""
    if item.get_closest_marker("distributed"):
        start_server()


def pytest_collection_finish() -> None:
    """Keep the modules and the tests out of every collection of garbage, and collect less often."""
    import frozen  # noqa: F401  # pyright: ignore[reportUnusedImport]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests with an optional marker that is not asked for."""
    for marker in OPTIONAL:
        if not config.getoption(f"--{marker}"):
            left_out = [item for item in items if item.get_closest_marker(marker)]
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)
