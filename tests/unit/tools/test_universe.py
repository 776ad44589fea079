"""The universe that xDSL finds by the entry point has everything under its name, and loads lazily."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from xdsl.universe import XDSL_UNIVERSE, Universe

from shardwright.tools.universe import UNIVERSE


@pytest.mark.parametrize("name", UNIVERSE.all_dialects)
def test_dialects_load_under_their_own_name(name: str):
    assert UNIVERSE.all_dialects[name]().name == name


def test_names_do_not_clash_with_xdsl():
    assert XDSL_UNIVERSE.all_dialects.keys().isdisjoint(UNIVERSE.all_dialects)
    assert XDSL_UNIVERSE.all_passes.keys().isdisjoint(UNIVERSE.all_passes)


def test_xdsl_finds_the_entry_point():
    (entry,) = entry_points(group="xdsl.universe", name="shardwright")
    assert isinstance(entry.load(), Universe)
    assert Universe.get_multiverse().all_dialects.keys() >= UNIVERSE.all_dialects.keys()


def test_the_entry_point_loads_no_dialect_and_no_library():
    program = (
        "import sys, shardwright.tools.universe as u; "
        "print(*[m for m in sys.modules if m in ('torch', 'numpy', 'ortools') "
        "or m.startswith(('shardwright.dialects.', 'shardwright.ir.'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
