"""Name the files of the user's code in the same way on every machine."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path


@cache
def source_path(file: str) -> str:
    """
    Return the path of a file relative to its import root, such as ``torch/nn/functional.py``.

    A script has its path relative to the working directory, or its name if it is outside of it.
    """
    name = next((name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == file), "")
    if name in ("", "__main__", "__mp_main__"):
        path = Path(file)
        here = os.getcwd()
        return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name
    package = name.split(".")
    is_package = os.path.basename(file) == "__init__.py"
    return "/".join((*package, "__init__.py")) if is_package else "/".join(package) + ".py"
