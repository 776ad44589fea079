"""How `lit tests/filecheck` finds the tests and the tools they run: those beside the running Python."""

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import lit.formats

HERE = Path(__file__).parent
SECONDS_PER_TEST = 60

config.name = "shardwright"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = str(HERE)  # noqa: F821
config.test_exec_root = str(HERE.parents[1] / "build" / "filecheck")  # noqa: F821

tool_folder = Path(sys.executable).parent
sys.path.append(str(HERE.parent / "support"))
tool_server = importlib.import_module("tool_server")
served = HERE.parents[1] / "build" / "filecheck" / "bin"
tool_server.start(served)
config.environment["PATH"] = os.pathsep.join([str(served), str(tool_folder), os.environ["PATH"]])  # noqa: F821
# lit clears the environment; the tools have to import the package that the tests stand beside.
if "PYTHONPATH" in os.environ:
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]  # noqa: F821
# A tool that writes colours into a pipe would make every CHECK fail.
config.environment["NO_COLOR"] = "1"  # noqa: F821

# lit kills the children of a test that takes too long through psutil, and refuses the setting without it.
if find_spec("psutil"):
    config.maxIndividualTestTime = SECONDS_PER_TEST  # noqa: F821
