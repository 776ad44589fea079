"""Measure the devices and links of the job by the library's profiler, and write the cluster file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.api.calibration.op_families import family_samples
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import load_cluster
from shardwright.runtime.profile.result import Output, Profile
from shardwright.runtime.profile.session import ProfileRequest, profile_rank

from .job import Job
from .results import Row

SECONDS, QUICK_SECONDS = 30.0, 8.0
NAME = "gpu-check"


def cluster_path(job: Job) -> Path:
    """Return the path of the cluster file of the job's own mesh."""
    return job.file("cluster.toml")


def measured_cluster(job: Job) -> Cluster:
    """Return on all ranks the cluster that this stage measured, or measure it briefly if there is no file."""
    cluster: Cluster | None = None
    if job.rank == 0 and cluster_path(job).exists():
        cluster = load_cluster(cluster_path(job))
        cluster = cluster if cluster.mesh == job.mesh() else None
    cluster = job.clock.everyone(cluster)[0]
    if cluster is not None:
        return cluster
    return generic_cluster(1) if job.world == 1 else measure(job, QUICK_SECONDS).cluster


def measure(job: Job, seconds: float) -> Profile:
    """Measure the ranks of the job for about `seconds`, and write the cluster file."""
    dtypes = ("float32", "bfloat16") if job.is_cuda else ("float32",)
    samples = family_samples(dtypes, quick=True)
    journal = profile_rank(ProfileRequest(job.mesh(), samples, seconds), job.device)
    output = Output(NAME, samples)
    return output.write(journal, cluster_path(job)) if job.rank == 0 else output.profile(journal)


class Profiling:
    """Measures once, and returns a row for each measured part."""

    def __init__(self, job: Job) -> None:
        self._job = job
        links = () if job.world == 1 else ("links", "computing and communicating at once")
        self.cases: Sequence[str] = ("devices", *links, "fits")
        self._profile: Profile | None = None

    def prepare(self, cases: Sequence[str]) -> None:
        """Measure, if there are two ranks or more."""
        if cases and self._job.world > 1:
            self._profile = measure(self._job, QUICK_SECONDS if self._job.settings.quick else SECONDS)

    def run(self, case: str) -> Row:
        if self._profile is None:
            return Row(case, "skipped", {}, "needs two ranks, since a profile measures the links between them")
        make_row = {"devices": _devices, "links": _links, "fits": _fits}.get(case, _interference)
        return make_row(case, self._profile)


def _devices(case: str, profile: Profile) -> Row:
    device, *others = profile.cluster.devices
    figures = {f"{dtype} TFLOP/s": rate / 1e12 for dtype, rate in device.flops}
    figures |= {"memory GB/s": device.memory_bandwidth / 1e9, "launch µs": 1e6 * device.launch}
    return Row(case, "measured", figures, f"and {len(others)} other kinds of devices" if others else "")


def _links(case: str, profile: Profile) -> Row:
    lines = [
        f"{link.axis} {name}: {1e6 * alpha:.3g} µs, {1e-9 / beta:.3g} GB/s" if beta else f"{link.axis} {name}"
        for link in profile.cluster.links
        for name, alpha, beta in (("latency and bandwidth", link.alpha, link.beta), *link.measured)
    ]
    return Row(case, "measured", {}, "; ".join(lines))


def _interference(case: str, profile: Profile) -> Row:
    slow = profile.cluster.interference
    figures = {"computing, times as long": slow.compute, "communicating, times as long": slow.communication}
    return Row(case, "measured", figures)


def _fits(case: str, profile: Profile) -> Row:
    errors = [fit.middle_error for fit in profile.fits]
    figures = {"fits": len(errors), "middle error of the middle fit, %": 100 * statistics.median(errors)}
    return Row(case, "measured", figures, "cluster.toml has all of them")
