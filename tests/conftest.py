"""Configuration of all tests."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings
from rank_server import start_server

# Set before torch is loaded: on tensors this small its threads mostly wait for one another, and parallel tests
# become ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Use a new cache folder for each run of the tests.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="shardwright-tests-")

# pytest-xdist sets it to 80 in its workers, which would be the width of all tables.
os.environ.pop("COLUMNS", None)

# The duration of an example depends more on the load of the machine than on the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

OPTIONAL = ("thorough", "benchmarks")
"""Markers of tests that run only with the option of the same name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that updates golden files, and one flag per optional marker."""
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew")
    for marker in OPTIONAL:
        parser.addoption(f"--{marker}", action="store_true", help=f"run the tests marked {marker}, too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the server that forks ranks, with all modules imported, before the first test on several processes."""
    if item.get_closest_marker("distributed"):
        start_server()


def pytest_collection_finish() -> None:
    """Exclude the modules and tests from garbage collection, and collect less often."""
    import frozen  # noqa: F401  # pyright: ignore[reportUnusedImport]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests with an optional marker whose option is not set, and put the others in an even order."""
    for marker in OPTIONAL:
        if not config.getoption(f"--{marker}"):
            left_out = [item for item in items if item.get_closest_marker(marker)]
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)
    if config.getoption("--thorough"):
        # The first case of a launch waits for all of its cases, which are many.
        for item in filter(lambda item: item.get_closest_marker("distributed"), items):
            item.add_marker(pytest.mark.timeout(7200), append=False)
    places = _places(items)
    items.sort(key=lambda item: places[item.path])


def _places(items: Iterable[pytest.Item]) -> dict[Path, tuple[float, Path]]:
    """
    Return the sort key of each file.

    Files that start processes, and so wait much of their time, are spread evenly among files that only compute. In both
    groups the files with the most tests come first.
    """
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    places: dict[Path, tuple[float, Path]] = {}
    for waits in (False, True):
        group = [path for path, tests in files.items() if _starts_processes(path, tests) == waits]
        for index, path in enumerate(sorted(group, key=lambda path: (-len(files[path]), path))):
            places[path] = index / len(group), path
    return places


def _starts_processes(path: Path, tests: Iterable[pytest.Item]) -> bool:
    return "end_to_end" in path.parts or any(test.get_closest_marker("distributed") for test in tests)
