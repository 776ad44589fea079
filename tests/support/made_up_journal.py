"""A journal of a cluster with known constants, as if they had been measured."""

from collections.abc import Sequence

from shardwright.ir.mesh import Mesh
from shardwright.runtime.profile.journal import Journal
from shardwright.runtime.profile.samples import OpSample
from shardwright.runtime.profile.tasks import OVERHEAD, ExchangeTask, exchanges

ALPHA, BETA = 1e-4, 2e-9
FLOPS, BANDWIDTH, LAUNCH = 5e10, 1e10, 4e-6
SIZES = (1024, 65536, 1024 * 1024)


def made_up_journal(mesh: Mesh, samples: Sequence[OpSample], slowness: Sequence[float]) -> Journal:
    """Return a journal: an exchange of n bytes takes ALPHA + BETA n, an op its roofline time, times `slowness`."""
    ranks = mesh.device_count
    about = {
        "mesh": [[axis.name, axis.size] for axis in mesh.axes],
        "backend": "gloo",
        "devices": [["cpu", 1_000_000_000]] * ranks,
    }
    journal = Journal(about, interference=[[1.5, 2.0], [1.7, 2.2], [9.0, 9.0]])
    for each in exchanges(mesh, "gloo", SIZES):
        journal.seconds[each.name] = rounds([_seconds(each, mesh)] * ranks)
    for sample in samples:
        work = sample.work
        seconds = max(work.flops / FLOPS, work.bytes / BANDWIDTH) + LAUNCH
        journal.seconds[work.key] = rounds([seconds * slow for slow in slowness])
    journal.seconds[OVERHEAD] = rounds([3e-4] * ranks)
    return journal


def rounds(by_rank: list[float]) -> list[list[float]]:
    """Return three rounds of measurements, the second disturbed."""
    return [by_rank, [10 * seconds for seconds in by_rank], by_rank]


def _seconds(each: ExchangeTask, mesh: Mesh) -> float:
    parts = mesh.parts(each.axes)
    if each.kind == "send":
        return 2 * (ALPHA + BETA * each.whole)
    turns = {"all_reduce": 2 * (parts - 1) / parts, "broadcast": 1.0}.get(each.kind, (parts - 1) / parts)
    return ALPHA + BETA * turns * each.whole
