"""Facts about the machine and the job that a reader of the figures needs, with differences between ranks."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import torch
import torch.cuda.nccl
import torch.distributed as dist

from shardwright.runtime.profile.devices import device_name, memory_bytes
from shardwright.runtime.rank_devices import backend_of

from .job import Job
from .results import Row


class Environment:
    """Reports facts about the job, and whether a collective over all ranks works."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._facts = {
            "versions": self._versions,
            "job": self._of_job,
            "devices": self._devices,
            "driver": self._driver,
            "sum over all ranks": self._sum,
        }
        self.cases: Sequence[str] = list(self._facts)

    def prepare(self, cases: Sequence[str]) -> None:
        """Do nothing."""

    def run(self, case: str) -> Row:
        return self._facts[case]()

    def _versions(self) -> Row:
        names = ("shardwright", "torch", "xdsl")
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if self._job.is_cuda else "not used"
        versions = {name: version(name) for name in names} | {"python": platform.python_version()}
        return _facts("versions", {**versions, "CUDA": torch.version.cuda or "none", "NCCL": nccl})

    def _of_job(self) -> Row:
        job = self._job
        hosts = Counter(job.clock.everyone(socket.gethostname()))
        listed = ", ".join(f"{name} ({count})" for name, count in hosts.items())
        cores = len(os.sched_getaffinity(0))
        facts = {"ranks": job.world, "backend": backend_of(job.device), "hosts (with ranks)": listed}
        facts |= {"cores of the first": cores, "its load before": f"{os.getloadavg()[1]:.1f}"}
        return _facts("job", facts | {"platform": platform.platform()})

    def _devices(self) -> Row:
        job = self._job
        own = f"{device_name(job.device)}, {memory_bytes(job.device) / 2**30:.0f} GiB"
        if job.is_cuda:
            major, minor = torch.cuda.get_device_capability(job.device)
            own += f", sm_{major}{minor}"
        kinds = Counter(job.clock.everyone(own))
        listed = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
        sharing = job.settings.share_gpu if job.is_cuda else 0
        return _facts("devices", {"of ranks": listed, "ranks on each GPU": sharing})

    def _driver(self) -> Row:
        if not self._job.is_cuda:
            return Row("driver", "skipped", {}, "needs CUDA")
        command = ["nvidia-smi", "--query-gpu=driver_version,name,pci.bus_id", "--format=csv,noheader"]
        try:
            output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            return Row("driver", "skipped", {}, f"nvidia-smi: {error}")
        drivers = sorted({line.partition(",")[0] for line in output.splitlines()})
        links = self._job.file("logs", "topology.txt")
        if self._job.rank == 0:
            result = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
            links.write_text(result.stdout + result.stderr)
        return _facts("driver", {"version": ", ".join(drivers), "how GPUs are linked": links})

    def _sum(self) -> Row:
        job = self._job
        tensor = torch.full((1 << 16,), float(job.rank + 1), device=job.device)
        dist.all_reduce(tensor)
        expected = job.world * (job.world + 1) / 2
        mean = tensor.double().mean().item()
        verdict = "passed" if mean == expected else "failed"
        return Row("sum over all ranks", verdict, {}, f"{mean:g}, expected {expected:g}")


def _facts(case: str, facts: Mapping[str, object]) -> Row:
    return Row(case, "measured", {}, "; ".join(f"{name}: {fact}" for name, fact in facts.items()))
