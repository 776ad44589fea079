"""
`python -m gpu_check`: starts the ranks of this node by torchrun; each rank then runs the stages.

The exit status is 1 if a stage failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from .report import JSON_NAME, read_status, write
from .results import StageResult, exit_status
from .settings import Settings, parse
from .stages import CHECK, Check

_LAUNCHED = "GPU_CHECK_LAUNCHED"
"""Environment variable that tells ranks that `_launch` started torchrun and reads the exit status from the report."""


def main(arguments: Sequence[str], check: Check = CHECK) -> int:
    """Run as the launcher, as a supervisor, or as a rank of a stage, depending on command line and environment."""
    settings = parse(arguments, check.stages)
    if settings.stage:
        from .job import run

        run(settings, next(stage for stage in check.stages if stage.name == settings.stage))
        return 0
    return (_supervise if "RANK" in os.environ else _launch)(check, settings, arguments)


def _launch(check: Check, settings: Settings, arguments: Sequence[str]) -> int:
    """Run torchrun with the number of processes for this node."""
    count = settings.nproc_per_node or _process_count(settings)
    print(f"gpu-check: {count} processes; the report will be in {settings.out}/", flush=True)
    (settings.out / JSON_NAME).unlink(missing_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", check.module]
    # If a rank exits with an error, torchrun prints its own long report; `_LAUNCHED` avoids that.
    environment = {**os.environ, _LAUNCHED: "1"}
    ran = subprocess.run([sys.executable, *torchrun, *arguments], env=environment)
    return ran.returncode or read_status(settings.out)


def _process_count(settings: Settings) -> int:
    """Return one process per GPU, times the ranks that share it; without GPUs 4, or 2 on one core."""
    import torch

    gpus = 0 if settings.cpu else torch.cuda.device_count()
    return gpus * settings.share_gpu if gpus else 4 if len(os.sched_getaffinity(0)) > 1 else 2


def _supervise(check: Check, settings: Settings, arguments: Sequence[str]) -> int:
    """Run the stages; rank 0 prints each result and updates the report after each stage."""
    from .supervisor import Supervisor, supervisors_store

    store, rank, world = supervisors_store(settings.timeout)
    supervisor = Supervisor(check, settings, arguments, store, rank, world)
    if rank == 0:
        for folder in ("work", "logs"):
            shutil.rmtree(settings.out / folder, ignore_errors=True)
    results: list[StageResult] = []
    for stage in (stage for stage in check.stages if stage.name in settings.stages):
        results.append(supervisor.run(stage))
        if rank == 0:
            _tell(results[-1])
            write(settings.out, results, complete=len(results) == len(settings.stages))
    supervisor.leave()
    return exit_status(results) if rank == 0 and _LAUNCHED not in os.environ else 0


def _tell(result: StageResult) -> None:
    counts = ", ".join(f"{result.count(v)} {v}" for v in ("passed", "failed", "measured", "skipped") if result.count(v))
    details = counts if not result.reason else result.reason.partition("\n")[0]
    print(f"gpu-check: {result.name}: {result.verdict} in {result.seconds:.0f} s ({details})", flush=True)
    for row in result.rows:
        if row.verdict == "failed":
            print(f"gpu-check:   {row.case}: {row.note}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
