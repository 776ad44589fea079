"""Jobs on this machine: an interrupt at any moment ends the job, and no process of it is left."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from shardwright.runtime import local_job
from shardwright.runtime.local_job import run_local_job


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("method", ["__init__", "poll"])
def test_an_interrupt_does_not_abandon_the_state_of_a_process(
    number: signal.Signals, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An exception while `poll` holds the lock of a process would make each later wait for the process endless."""
    processes: list[subprocess.Popen[bytes]] = []
    finished: list[str] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            processes.append(self)
            super().__init__(*arguments, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
            self._interrupted("__init__")

        def poll(self) -> int | None:
            self._interrupted("poll")
            return super().poll()

        def _interrupted(self, here: str) -> None:
            if here == method and not finished:
                signal.raise_signal(number)
                finished.append(here)

    program = tmp_path / "endless.py"
    program.write_text("import time\nwhile True: time.sleep(1)\n")
    monkeypatch.setattr(local_job.subprocess, "Popen", Interrupted)
    # Shells start background jobs, which these tests may be, with SIGINT ignored.
    given = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_local_job(2, str(program), [])
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, given)
    assert finished == [method]
    assert processes
    assert all(process.returncode is not None for process in processes)
