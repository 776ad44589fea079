"""
Run programs as `python` would, in processes that start fast: they are forked from a server that has loaded torch,
the package and transformers once for all tests.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from rank_server import start_server
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from shardwright.runtime.local_job import places

Done = subprocess.CompletedProcess[str]


def run_python(*arguments: str, folder: Path | None = None, timeout: float = 120.0) -> Done:
    """Run `python ARGUMENTS` in a folder: a script with its arguments, or `-m` and a module with its arguments."""
    return _run(arguments, [{}], folder, timeout)


def run_ranks(ranks: int, *arguments: str, folder: Path | None = None, timeout: float = 170.0) -> Done:
    """Do what `torchrun --standalone --nproc-per-node RANKS ARGUMENTS` does if no rank fails."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    return _run(arguments, [places(rank, ranks, store.port) for rank in range(ranks)], folder, timeout)


def _run(arguments: Sequence[str], given: Sequence[Mapping[str, str]], folder: Path | None, timeout: float) -> Done:
    """Run one process per environment; the first failure ends the others."""
    start_server()
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="shardwright-forked-") as kept:
        outputs = [str(Path(kept, name)) for name in ("stdout", "stderr")]
        environments = [{**os.environ, "OMP_NUM_THREADS": "1", **each} for each in given]
        started = [
            context.Process(target=_program, args=(arguments, each, str(folder or Path.cwd()), outputs))
            for each in environments
        ]
        for process in started:
            process.start()
        deadline = time.monotonic() + timeout
        while any(process.is_alive() for process in started) and not any(process.exitcode for process in started):
            if time.monotonic() > deadline:
                break
            # A process may have ended in the meantime.
            if (running := next((process for process in started if process.is_alive()), None)) is not None:
                running.join(0.05)
        late = time.monotonic() > deadline
        for process in started:
            process.kill() if late else process.join(5.0)
            process.kill()
            process.join()
        printed, told = (Path(name).read_text() if Path(name).exists() else "" for name in outputs)
    if late:
        raise subprocess.TimeoutExpired(list(arguments), timeout, printed, told)
    codes = [process.exitcode or 0 for process in started]
    return Done(list(arguments), next(filter(None, codes), 0), printed, told)


def _program(arguments: Sequence[str], environment: Mapping[str, str], folder: str, outputs: Sequence[str]) -> None:
    """Act as a Python process with these arguments; the exit code of the program ends this process."""
    for number, path in enumerate(outputs, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[0:0] = list(arguments[1:]), [folder]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0:0] = list(arguments), [str(Path(folder, arguments[0]).parent)]
            runpy.run_path(str(Path(folder, arguments[0])), run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    with suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    raise SystemExit(code if isinstance(code, int) else int(code is not None))
