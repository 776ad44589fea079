"""The machine and the job: what a reader has to know of the figures, rank by rank where ranks differ."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
import torch.cuda.nccl
import torch.distributed as dist

from shardwright.runtime.profile.devices import device_name, memory_bytes
from shardwright.runtime.rank_devices import backend_of

from .job import Job
from .results import Row


class Environment:
    """The facts of the job; and whether a collective over all ranks gives the right number at all."""

    cases: Sequence[str] = ("versions", "job", "devices", "driver", "sum over all ranks")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._facts = {
            "versions": self._versions,
            "job": self._of_job,
            "devices": self._devices,
            "driver": self._driver,
            "sum over all ranks": self._sum,
        }

    def prepare(self, cases: Sequence[str]) -> None:
        """Nothing."""

    def run(self, case: str) -> Row:
        """One kind of facts."""
        return self._facts[case]()

    def _versions(self) -> Row:
        names = ("shardwright", "torch", "xdsl")
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if self._job.is_cuda else "not used"
        made = {name: version(name) for name in names} | {"python": platform.python_version()}
        return _facts("versions", {**made, "CUDA": torch.version.cuda or "none", "NCCL": nccl})

    def _of_job(self) -> Row:
        job = self._job
        hosts = Counter(job.clock.everyone(socket.gethostname()))
        listed = ", ".join(f"{name} ({count})" for name, count in hosts.items())
        cores = len(os.sched_getaffinity(0))
        return _facts(
            "job",
            {
                "ranks": job.world,
                "backend": backend_of(job.device),
                "hosts (with ranks)": listed,
                "cores of the first": cores,
                "its load before": f"{os.getloadavg()[1]:.1f}",
                "platform": platform.platform(),
            },
        )

    def _devices(self) -> Row:
        job = self._job
        mine = f"{device_name(job.device)}, {memory_bytes(job.device) / 2**30:.0f} GiB"
        if job.is_cuda:
            major, minor = torch.cuda.get_device_capability(job.device)
            mine += f", sm_{major}{minor}"
        kinds = Counter(job.clock.everyone(mine))
        listed = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
        each = job.settings.share_gpu if job.is_cuda else 0
        return _facts("devices", {"of ranks": listed, "ranks on each GPU": each})

    def _driver(self) -> Row:
        if not self._job.is_cuda:
            return Row("driver", "skipped", {}, "needs CUDA")
        asked = ["nvidia-smi", "--query-gpu=driver_version,name,pci.bus_id", "--format=csv,noheader"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            return Row("driver", "skipped", {}, f"nvidia-smi: {error}")
        drivers = sorted({line.partition(",")[0] for line in found.splitlines()})
        links = self._job.file("logs", "topology.txt")
        if self._job.rank == 0:
            _write_topology(links)
        return _facts("driver", {"version": ", ".join(drivers), "how GPUs are linked": links})

    def _sum(self) -> Row:
        job = self._job
        given = torch.full((1 << 16,), float(job.rank + 1), device=job.device)
        dist.all_reduce(given)
        expected = job.world * (job.world + 1) / 2
        found = given.double().mean().item()
        verdict = "passed" if found == expected else "failed"
        return Row("sum over all ranks", verdict, {}, f"{found:g}, expected {expected:g}")


def _facts(case: str, facts: Mapping[str, object]) -> Row:
    return Row(case, "measured", {}, "; ".join(f"{name}: {fact}" for name, fact in facts.items()))


def _write_topology(path: Path) -> None:
    """Keep how GPUs are connected, where nvidia-smi can tell."""
    found = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
    path.write_text(found.stdout + found.stderr)


def make(job: Job) -> Environment:
    """The work of the stage `environment`."""
    return Environment(job)
