"""Configuration of `lit tests/filecheck`: the tests, and the tools in the folder of the running Python."""

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
# lit clears the environment; the tools must import the package of this checkout.
if "PYTHONPATH" in os.environ:
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]  # noqa: F821
# Colours in the output of a tool would make every CHECK fail.
config.environment["NO_COLOR"] = "1"  # noqa: F821

# lit needs psutil to kill the children of a test that takes too long, and rejects this setting without psutil.
if find_spec("psutil"):
    config.maxIndividualTestTime = SECONDS_PER_TEST  # noqa: F821
