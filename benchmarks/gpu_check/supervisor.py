"""
Runs a stage: starts a process for the rank of each supervisor, sees them end, and starts them again after a crash.

There is a supervisor for each rank of the job; they agree by the store of torchrun, and have no process group and touch
no GPU. So a rank that is killed, hangs or breaks the state of its device costs one case of one stage.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import Store

from .journal import journal_of
from .results import Row, StageResult, verdict_of
from .settings import Settings
from .stages import TOOL_FOUND_FAULTS, Check, Stage

GRACE = 20.0
"""Seconds for which a rank may go on after another failed: its watch ends it sooner."""

MOST_RESTARTS = 6
_LOOK = 0.1
"""Seconds between two looks at a process."""

_WRITES = 3.0
"""Seconds for which a rank that is ended lives on, so that all that are late write where they are: one that misses
another ends at once."""

_ORPHANED = "was ended, for another rank had failed"
_TAIL_LINES, _TAIL_CHARACTERS = 12, 2000


@dataclass(frozen=True)
class Ended:
    """
    How the process of a rank ended.

    Args:
        code: its exit code; that of a signal is negative.
        reason: why the supervisor ended it; empty if it ended by itself.
        tail: the end of its log.
    """

    rank: int
    code: int
    reason: str
    tail: str

    @property
    def order(self) -> int:
        """How far it is from the cause: it was late, a signal killed it, it said something, it only missed another."""
        if self.reason:
            return 3 if self.reason == _ORPHANED else 0
        return 1 if self.code < 0 else 2 if self.tail else 3

    def __str__(self) -> str:
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with code {self.code}"
        if self.code == TOOL_FOUND_FAULTS:
            how = "was found at fault by compute-sanitizer"
        return f"rank {self.rank} {self.reason or how}" + (f":\n{self.tail}" if self.tail else "")


def cause(ended: Sequence[Ended]) -> str:
    """What to say of a launch that failed: of the first two of those ranks that are the nearest to the cause."""
    failed = [each for each in ended if each.code != 0]
    nearest = min(each.order for each in failed)
    return "\n".join(str(each) for each in [each for each in failed if each.order == nearest][:2])


class Supervisor:
    """
    One supervisor of the job.

    Args:
        arguments: of the command line, which the processes of ranks get too.
        store: of all supervisors.
    """

    def __init__(
        self, check: Check, settings: Settings, arguments: Sequence[str], store: Store, rank: int, world: int
    ) -> None:
        self._check, self._settings, self._arguments, self._store = check, settings, list(arguments), store
        self._rank, self._world, self._launches = rank, world, 0

    def run(self, stage: Stage) -> StageResult:
        """Run a stage; every supervisor calls this, and the result of rank 0 counts."""
        began = time.monotonic()
        if refusal := self._share(self._refusal(stage)):
            return StageResult(stage.name, stage.title, "skipped", 0.0, (), refusal)
        journal, reason, restarts = journal_of(self._settings.out, stage.name), "", 0
        if self._rank == 0:
            journal.path.unlink(missing_ok=True)
        while True:
            ended = self._launch(stage)
            again = ""
            if self._rank == 0 and any(each.code != 0 for each in ended):
                text, case = cause(ended), journal.open_case()
                if case and restarts < MOST_RESTARTS:
                    journal.add(Row(case, "failed", {}, text))
                    again = "again"
                elif case:
                    journal.add(Row(case, "failed", {}, text))
                    reason = f"ended after {MOST_RESTARTS} crashes; the cases that follow were not tried"
                else:
                    reason = text
            if not self._share(again):
                break
            restarts += 1
        rows = tuple(journal.rows()) if self._rank == 0 else ()
        result = StageResult(stage.name, stage.title, verdict_of(rows), time.monotonic() - began, rows, reason)
        return replace(result, verdict="failed") if reason else result

    def leave(self) -> None:
        """Wait until every supervisor is here, at the end: torchrun ends the others when one leaves with an error."""
        self._store.set(f"left/{self._rank}", "1")
        if self._rank == 0:
            self._store.wait([f"left/{rank}" for rank in range(self._world)], timedelta(seconds=GRACE))

    def _refusal(self, stage: Stage) -> str:
        """Why a stage is skipped here; what rank 0 finds counts."""
        if stage.needs_cuda and not uses_cuda(self._settings):
            return "needs CUDA"
        if stage.tool and tool_path(stage.tool[0]) is None:
            return f"needs {stage.tool[0]}, which is not on the PATH (it comes with the CUDA toolkit)"
        return ""

    def _share(self, text: str) -> str:
        """The text of rank 0."""
        self._launches += 1
        key = f"said/{self._launches}"
        if self._rank == 0:
            self._store.set(key, text or "-")
        found = self._store.get(key).decode()
        return "" if found == "-" else found

    def _launch(self, stage: Stage) -> list[Ended]:
        """Start the ranks of a stage and wait until all have ended."""
        self._launches += 1
        prefix, deadline = f"launch/{self._launches}", time.monotonic() + self._settings.timeout
        address, port = self._share(_free_address() if self._rank == 0 else "").split()
        path = self._settings.out / "logs" / f"{stage.name}-{self._launches}-rank{self._rank}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as log:
            words = [sys.executable, "-m", self._check.module, *self._arguments, "--stage", stage.name]
            environment = _environment(stage, self._settings, address, port)
            process = subprocess.Popen([*_tool(stage), *words], stdout=log, stderr=subprocess.STDOUT, env=environment)
            reason = self._wait(process, prefix, deadline)
        tail = _tail(path) if process.returncode else ""
        mine = Ended(self._rank, process.returncode, reason, tail)
        self._store.set(f"{prefix}/ended/{self._rank}", json.dumps(asdict(mine)))
        keys = [f"{prefix}/ended/{rank}" for rank in range(self._world)]
        self._store.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 0.0) + 3 * GRACE))
        return [Ended(**json.loads(each)) for each in self._store.multi_get(keys)]

    def _wait(self, process: subprocess.Popen[bytes], prefix: str, deadline: float) -> str:
        """Wait for the process of this rank; why it was ended, if it was."""
        failed, another = f"{prefix}/failed", None
        while process.poll() is None:
            time.sleep(_LOOK)
            now = time.monotonic()
            if another is None and self._store.check([failed]):
                another = now
            if another is not None and now - another > GRACE:
                return _end(process, _ORPHANED)
            if now > deadline:
                self._store.set(failed, "1")
                return _end(process, f"was ended after {self._settings.timeout:g} s (--timeout)")
        if process.returncode != 0:
            self._store.set(failed, "1")
        return ""


def uses_cuda(settings: Settings) -> bool:
    """Whether ranks will compute on GPUs; asks for their number alone, which makes no context."""
    import torch

    return not settings.cpu and torch.cuda.device_count() > 0


def tool_path(name: str) -> str | None:
    """Where a tool of CUDA is."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def _tool(stage: Stage) -> list[str]:
    return [tool_path(stage.tool[0]) or stage.tool[0], *stage.tool[1:]] if stage.tool else []


def _end(process: subprocess.Popen[bytes], reason: str) -> str:
    """End a process that first writes to its log where it is."""
    process.send_signal(signal.SIGUSR1)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_WRITES)
    process.kill()
    process.wait()
    return reason


def _environment(stage: Stage, settings: Settings, address: str, port: str) -> Mapping[str, str]:
    """Of a rank: the place of its supervisor in the job, and a store of its own."""
    made = {**os.environ, "MASTER_ADDR": address, "MASTER_PORT": port, "PYTHONUNBUFFERED": "1", **stage.environment}
    # torchrun's store and its file of errors are for supervisors: an error of a rank is a row of the report.
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"):
        made.pop(name, None)
    folder = str(Path(__file__).resolve().parents[1])
    made["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    if settings.cpu:
        made["CUDA_VISIBLE_DEVICES"] = ""
    if settings.share_gpu > 1:
        # NCCL refuses two ranks on one GPU of a host, and takes this for the host.
        made["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.environ['RANK']}"
    return made


def _free_address() -> str:
    """Where rank 0 can hold a store: the address by which this node reaches the one of torchrun, and a free port."""
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        address = "127.0.0.1"
    else:
        with socket.create_connection((master, port), timeout=60.0) as reached:
            mine = str(reached.getsockname()[0])
        address = master if mine.startswith("127.") or mine == "::1" else mine
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{address} {free.getsockname()[1]}"


def _tail(path: Path) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]


def supervisors_store(timeout: float) -> tuple[Store, int, int]:
    """The store of torchrun, the rank of this supervisor and how many there are."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent_holds_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    wait = timedelta(seconds=timeout + 10 * GRACE)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, world, is_master=rank == 0 and not agent_holds_it, timeout=wait), rank, world
