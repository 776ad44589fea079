"""
Run programs as `python` and `torchrun` would, in processes that start fast: they are forked from a server that has
loaded torch, the package and transformers once for all tests.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from program_server import Listener, serve
from rank_server import start_server

Done = subprocess.CompletedProcess[str]

_OTHERS_RUN_IN_PYTHON = f"""
words = [word for word in sys.argv[1:] if word != "-u"]
if not words or words[0] != "-m" and not words[0].endswith(".py") or "site-packages" in words[0]:
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""


def run_python(
    *arguments: str, folder: Path | None = None, timeout: float = 120.0, environment: Mapping[str, str] | None = None
) -> Done:
    """
    Run `python ARGUMENTS` in a folder: a script with its arguments, or `-m` and a module with its arguments.

    Args:
        environment: variables in addition to those of this process.
    """
    given = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    return subprocess.run(
        [fast_python(), *arguments], cwd=folder, env=given, capture_output=True, text=True, timeout=timeout
    )


def torchrun(
    ranks: int,
    *arguments: str,
    folder: Path | None = None,
    timeout: float = 170.0,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Run `torchrun --standalone --nproc-per-node RANKS ARGUMENTS` in a folder."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return run_python(*launcher, *arguments, folder=folder, timeout=timeout, environment=environment)


@cache
def fast_python() -> str:
    """
    Return the path of a program that runs scripts and modules as Python does, in processes that start fast.

    The processes that these programs start by `sys.executable` also start fast.
    """
    start_server()
    listener = Listener()
    program = listener.folder / "python"
    listener.write_client(program, _OTHERS_RUN_IN_PYTHON)
    context = multiprocessing.get_context("forkserver")
    context.Process(target=serve, args=(listener.socket, listener.alive, _run)).start()
    return str(program)


def _run(words: Sequence[str]) -> None:
    """Act as a Python process with these words on its command line."""
    sys.executable, *arguments = (word for word in words if word != "-u")
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if arguments[0] == "-m":
        sys.argv, sys.path[0:0] = arguments[1:], [os.getcwd(), *paths]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        script = Path(arguments[0]).absolute()
        sys.argv, sys.path[0:0] = arguments, [str(script.parent), *paths]
        runpy.run_path(str(script), run_name="__main__")
