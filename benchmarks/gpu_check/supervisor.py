"""
Run a stage: each supervisor starts the process of its rank, waits for its end, and starts it again after a crash.

Each rank of the job has a supervisor. Supervisors communicate by torchrun's store only, and leave the GPUs alone. A
rank that is killed, hangs or breaks its device therefore costs only one case of one stage.
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

from .results import Journal, Row, StageResult, verdict_of
from .settings import Settings
from .stages import TOOL_FOUND_FAULTS, Check, Stage

GRACE = 20.0
"""Seconds that a rank may continue after another rank failed. Usually its watch ends it sooner."""

MOST_RESTARTS = 6
_LOOK = 0.1
"""Seconds between two checks of a process."""

_WRITES = 3.0
"""Seconds between the signal and the end of a late rank, so that all late ranks write their positions to their logs."""

_ORPHANED = "was ended, for another rank had failed"
_TAIL_LINES, _TAIL_CHARACTERS = 12, 2000


@dataclass(frozen=True)
class Ended:
    """
    The end of a process: its exit code (negative for a signal), why the supervisor ended it, and the end of its log.
    """

    rank: int
    code: int
    reason: str
    tail: str

    @property
    def order(self) -> int:
        """Return the distance from the cause: 0 if it was late, 1 if killed by a signal, 2 if it has a log, else 3."""
        if self.reason:
            return 3 if self.reason == _ORPHANED else 0
        return 1 if self.code < 0 else 2 if self.tail else 3

    def __str__(self) -> str:
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with code {self.code}"
        if self.code == TOOL_FOUND_FAULTS:
            how = "was found at fault by compute-sanitizer"
        return f"rank {self.rank} {self.reason or how}" + (f":\n{self.tail}" if self.tail else "")


def cause(ended: Sequence[Ended]) -> str:
    """Return the message of a failed launch: the first two ranks with the least distance from the cause."""
    failed = [end for end in ended if end.code != 0]
    nearest = min(end.order for end in failed)
    return "\n".join(str(end) for end in [end for end in failed if end.order == nearest][:2])


class Supervisor:
    """The supervisor of one rank; it passes its command line on, and shares a store with all others."""

    def __init__(
        self, check: Check, settings: Settings, arguments: Sequence[str], store: Store, rank: int, world: int
    ) -> None:
        self._check, self._settings, self._arguments, self._store = check, settings, list(arguments), store
        self._rank, self._world, self._launches = rank, world, 0

    def run(self, stage: Stage) -> StageResult:
        """Run a stage. Every supervisor calls this, and the result of rank 0 counts."""
        began = time.monotonic()
        if refusal := self._share(self._refusal(stage)):
            return StageResult(stage.name, stage.title, "skipped", 0.0, (), refusal)
        journal, reason, restarts = Journal.of(self._settings.out, stage.name), "", 0
        if self._rank == 0:
            journal.path.unlink(missing_ok=True)
        while True:
            ended = self._launch(stage)
            again = ""
            if self._rank == 0 and any(end.code != 0 for end in ended):
                text, case = cause(ended), journal.open_case()
                if case and restarts < MOST_RESTARTS:
                    journal.add(Row(case, "failed", {}, text))
                    again = "again"
                elif case:
                    journal.add(Row(case, "failed", {}, text))
                    reason = f"ended after {MOST_RESTARTS} crashes; all later cases were skipped"
                else:
                    reason = text
            if not self._share(again):
                break
            restarts += 1
        rows = tuple(journal.rows()) if self._rank == 0 else ()
        result = StageResult(stage.name, stage.title, verdict_of(rows), time.monotonic() - began, rows, reason)
        return replace(result, verdict="failed") if reason else result

    def leave(self) -> None:
        """Wait for all supervisors at the end, since torchrun ends the others if one exits with an error."""
        self._store.set(f"left/{self._rank}", "1")
        if self._rank == 0:
            self._store.wait([f"left/{rank}" for rank in range(self._world)], timedelta(seconds=GRACE))

    def _refusal(self, stage: Stage) -> str:
        """Return why a stage is skipped here, or ""; the answer of rank 0 counts."""
        if stage.needs_cuda and not uses_cuda(self._settings):
            return "needs CUDA"
        if stage.tool and tool_path(stage.tool[0]) is None:
            return f"needs {stage.tool[0]}, which is not on the PATH (it comes with the CUDA toolkit)"
        return ""

    def _share(self, text: str) -> str:
        """Return the text of rank 0 on all ranks."""
        self._launches += 1
        key = f"said/{self._launches}"
        if self._rank == 0:
            self._store.set(key, text or "-")
        shared = self._store.get(key).decode()
        return "" if shared == "-" else shared

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
            if stage.tool:
                words = [tool_path(stage.tool[0]) or stage.tool[0], *stage.tool[1:], *words]
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)
            reason = self._wait(process, prefix, deadline)
        lines = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:] if process.returncode else []
        tail = "\n".join(lines)[-_TAIL_CHARACTERS:]
        own = Ended(self._rank, process.returncode, reason, tail)
        self._store.set(f"{prefix}/ended/{self._rank}", json.dumps(asdict(own)))
        keys = [f"{prefix}/ended/{rank}" for rank in range(self._world)]
        self._store.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 0.0) + 3 * GRACE))
        return [Ended(**json.loads(entry)) for entry in self._store.multi_get(keys)]

    def _wait(self, process: subprocess.Popen[bytes], prefix: str, deadline: float) -> str:
        """Wait for the process of this rank, and return why the supervisor ended it, or ""."""
        failed, failed_at = f"{prefix}/failed", None
        while process.poll() is None:
            time.sleep(_LOOK)
            now = time.monotonic()
            if failed_at is None and self._store.check([failed]):
                failed_at = now
            if failed_at is not None and now - failed_at > GRACE:
                return _end(process, _ORPHANED)
            if now > deadline:
                self._store.set(failed, "1")
                return _end(process, f"was ended after {self._settings.timeout:g} s (--timeout)")
        if process.returncode != 0:
            self._store.set(failed, "1")
        return ""


def uses_cuda(settings: Settings) -> bool:
    """Return whether ranks will compute on GPUs. Only the number of GPUs is queried, which creates no CUDA context."""
    import torch

    return not settings.cpu and torch.cuda.device_count() > 0


def tool_path(name: str) -> str | None:
    """Return the path of a CUDA tool, or None."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def _end(process: subprocess.Popen[bytes], reason: str) -> str:
    """Signal a process to write its position to its log, and then kill it."""
    process.send_signal(signal.SIGUSR1)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_WRITES)
    process.kill()
    process.wait()
    return reason


def _environment(stage: Stage, settings: Settings, address: str, port: str) -> Mapping[str, str]:
    """Return the environment of a rank: the rank of its supervisor, and the address of a new store."""
    env = {**os.environ, "MASTER_ADDR": address, "MASTER_PORT": port, "PYTHONUNBUFFERED": "1", **stage.environment}
    # Only supervisors use torchrun's store and error file; the error of a rank becomes a row of the report.
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"):
        env.pop(name, None)
    folder = str(Path(__file__).resolve().parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    if settings.cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    if settings.share_gpu > 1:
        # NCCL refuses two ranks on one GPU of a host, so each rank gets its own host id.
        env["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.environ['RANK']}"
    return env


def _free_address() -> str:
    """Return an address of this node that all nodes reach, and a free port, for a store of rank 0."""
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        address = "127.0.0.1"
    else:
        with socket.create_connection((master, port), timeout=60.0) as reached:
            own = str(reached.getsockname()[0])
        address = master if own.startswith("127.") or own == "::1" else own
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{address} {free.getsockname()[1]}"


def supervisors_store(timeout: float) -> tuple[Store, int, int]:
    """Return torchrun's store, the rank of this supervisor, and the number of supervisors."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent_holds_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    wait = timedelta(seconds=timeout + 10 * GRACE)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, world, is_master=rank == 0 and not agent_holds_it, timeout=wait), rank, world
