"""
Start jobs that are to be killed: by torchrun, or by a fork of a server with all imports loaded, which is faster.

As torchrun does, the launcher of a forked job holds the store and ends all ranks soon after the first failure.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _killed_training import Aim

TRAINING = "_killed_training"


@dataclass
class Job:
    """A running job: the process that started the ranks, the pipe from all its processes, and a wait for its end."""

    launcher: int
    output: int
    reap: Callable[[], object]
    lines: list[str] = field(default_factory=list[str], init=False)
    is_over: bool = field(default=False, init=False)
    _rest: str = field(default="", init=False)

    def follow(self, seconds: float, until: tuple[str, ...] = ()) -> bool:
        """Read the output for at most `seconds`, and return whether a line with one of the prefixes `until` came."""
        deadline = time.monotonic() + seconds
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            if not select.select([self.output], [], [], left)[0]:
                break
            read = os.read(self.output, 1 << 16).decode()
            self.is_over = not read
            *lines, self._rest = (self._rest + read).split("\n")
            self.lines += lines
            if until and any(line.startswith(until) for line in lines):
                return True
        return False

    def processes(self) -> list[int]:
        """Return the ids of all living processes that write to the job's output, however they were started."""
        output = os.readlink(f"/proc/self/fd/{self.output}")
        alive: list[int] = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if int(process) != os.getpid() and os.readlink(f"/proc/{process}/fd/1") == output:
                    alive.append(int(process))
        return alive

    def kill(self, processes: list[int]) -> None:
        """Send SIGKILL to processes, one after the other."""
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> list[int]:
        """Kill all living processes of the job, and return their ids."""
        alive = [] if self.is_over else self.processes()
        self.kill(alive)
        self.reap()
        os.close(self.output)
        return alive


def started(by_torchrun: bool, ranks: int, folder: str, cluster: str, aim: Aim | None, errors: Path) -> Job:
    """Start a job by torchrun, as users do, or forked from a server with all imports loaded."""
    if by_torchrun:
        script = str(Path(__file__).with_name(f"{TRAINING}.py"))
        aimed = [str(aim.rank), aim.operation, str(aim.count)] if aim is not None else []
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        with errors.open("ab") as log:
            job = subprocess.Popen([*launch, script, folder, cluster, *aimed], stdout=subprocess.PIPE, stderr=log)
        assert job.stdout is not None
        with job.stdout as stdout:
            return Job(job.pid, os.dup(stdout.fileno()), job.wait)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shardwright.api.parallelize", "shardwright.runtime.launch", TRAINING, __name__])
    receiver, sender = context.Pipe(duplex=False)
    launcher = context.Process(target=_launch, args=(sender, str(errors), ranks, (folder, cluster, aim)))
    launcher.start()
    sender.close()
    output = os.dup(receiver.fileno())
    receiver.close()
    assert launcher.pid is not None
    return Job(launcher.pid, output, launcher.join)


def _launch(sender: Connection, errors: str, ranks: int, call: tuple[str, str, Aim | None]) -> None:
    """Fork the ranks, wait until all have ended, and terminate the others soon after one has failed."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, (
        f"the launcher has {len(threads)} threads, expected one: forking is only safe without threads"
    )
    os.dup2(sender.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    sender.close()
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listening.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(listening, rank, ranks, call)) for rank in range(ranks)]
    for process in processes:
        process.start()
    # The store starts threads, so it comes after all forks.
    options = {"is_master": True, "wait_for_workers": False, "timeout": timedelta(seconds=60)}
    store = TCPStore("127.0.0.1", port, master_listen_fd=listening.detach(), **options)
    while any(process.is_alive() for process in processes):
        time.sleep(0.02)
        if any(process.exitcode for process in processes):
            time.sleep(0.1)
            for process in processes:
                process.terminate()
            break
    for process in processes:
        process.join()
    del store


def _rank(listening: socket.socket, rank: int, ranks: int, call: tuple[str, str, Aim | None]) -> None:
    import torch
    from _killed_training import train

    from shardwright.runtime.local_job import places

    os.environ |= places(rank, ranks, listening.getsockname()[1])
    listening.close()
    torch.set_num_threads(1)
    train(*call)
