"""The cluster that fits a journal: alpha and beta of all collectives, rates of all families of ops, measured times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...ir.cluster import Cluster, Device, Interference, Link
from ...ir.cluster_file import cluster_toml
from ...ir.mesh import Axis, Mesh
from ...ir.op_cost import COPY, OpWork, op_rate
from ...ir.op_rate import OpRate
from ...ir.text_file import write_atomically
from ...ir.toml_text import comment
from .fit import Line, fit_line
from .journal import Journal, ProfileError, middle_seconds
from .op_fit import fit_rates
from .samples import OpSample
from .tasks import OVERHEAD, TRANSFER, ExchangeTask, exchanges, groups_of

_LEAST_BETA = 1e-12
"""Seconds per byte if bytes have no measurable cost, as on an axis of one rank."""

_CUDA_BLOCK = 512.0
"""The block size in bytes of torch's CUDA allocator: every tensor's memory is a multiple of it."""

_ALIKE = 1.4
"""Devices of one name whose speeds differ by more than this factor belong to different kinds."""

_FREE = Line(1e-6, _LEAST_BETA)
"""The line of an axis of one rank."""


@dataclass(frozen=True)
class FittedNumbers:
    """A fit, for people: its subject, the numbers, and the median and largest relative error."""

    what: str
    found: Mapping[str, float]
    points: int
    middle_error: float
    worst_error: float


@dataclass(frozen=True)
class Profile:
    """A cluster, the fits behind it, and by task the reason why its measurement is missing."""

    cluster: Cluster
    fits: tuple[FittedNumbers, ...]
    missing: Mapping[str, str]


def mesh_of(journal: Journal) -> Mesh:
    """Return the mesh of a journal's job."""
    return Mesh(tuple(Axis(name, size) for name, size in journal.about["mesh"]))


def profile_of(journal: Journal, samples: Sequence[OpSample], name: str, in_step: Sequence[OpSample] = ()) -> Profile:
    """
    Return the measured cluster.

    Args:
        in_step: ops that were timed in a step, where they take longer than in a loop; they correct the rates.

    Raises:
        ProfileError: there are too few measurements to plan for the cluster; the message names a missing measurement.
    """
    mesh = mesh_of(journal)
    links, fits = _links(journal, mesh)
    kinds = kinds_of(journal, samples)
    devices: list[Device] = []
    for kind, ranks in kinds.items():
        device, device_fits = _device(kind, ranks, journal, samples)
        devices.append(replace(device, rates=_corrected(device, _times(journal, in_step, ranks))))
        fits += device_fits
    places = list(kinds)
    placement = tuple(
        next(places.index(kind) for kind, ranks in kinds.items() if rank in ranks) for rank in range(mesh.device_count)
    )
    cluster = Cluster(name, mesh, tuple(devices), placement, tuple(links), _interference(journal))
    return Profile(cluster, tuple(fits), missing_of(journal, samples))


def missing_of(journal: Journal, samples: Sequence[OpSample]) -> dict[str, str]:
    """Return the measurements that are missing, with the reasons."""
    missing = dict(journal.left_out)
    if journal.trouble:
        names = [sample.work.key for sample in samples]
        names += [f"{exchange.series}" for exchange in _exchanges(journal, mesh_of(journal))]
        measured = {*journal.seconds, *(name.rpartition(" of ")[0] for name in journal.seconds)}
        missing |= {name: journal.trouble for name in names if name not in measured and name not in missing}
    return missing


def _exchanges(journal: Journal, mesh: Mesh) -> list[ExchangeTask]:
    """Return one exchange of each series."""
    return exchanges(mesh, journal.about["backend"], (1024,))


def _points(journal: Journal, series: str) -> list[tuple[float, float]]:
    """Return the (bytes, seconds) of a series of exchanges, in ascending order."""
    points: list[tuple[float, float]] = []
    for name in journal.seconds:
        name_of_series, _, size = name.partition(" of ")
        if name_of_series == series:
            points.append((float(size.removesuffix(" bytes")), middle_seconds(journal.quiet_rounds(name))))
    return sorted(points)


def _links(journal: Journal, mesh: Mesh) -> tuple[list[Link], list[FittedNumbers]]:
    fits: list[FittedNumbers] = []
    links = [Link(axis.name, _FREE.alpha, _FREE.beta) for axis in mesh.spatial if axis.size == 1]
    for axes in groups_of(mesh):
        parts = mesh.parts(axes)
        lines: dict[str, Line] = {}
        points: list[tuple[str, float, float]] = []
        for exchange in (exchange for exchange in _exchanges(journal, mesh) if exchange.axes == axes):
            seen = _points(journal, exchange.series)
            if not seen:
                continue
            if exchange.kind == TRANSFER:
                # A transfer was timed both ways.
                seen = [(size, seconds / 2) for size, seconds in seen]
            line = fit_line([(_counted(exchange.kind, size, parts), seconds) for size, seconds in seen])
            lines[exchange.curve] = line
            numbers = {"alpha": line.alpha, "beta": line.beta}
            fits.append(FittedNumbers(exchange.series, numbers, len(seen), line.middle_error, line.worst_error))
            if exchange.kind != TRANSFER:
                points += [(exchange.curve, size, seconds) for size, seconds in rising(seen)]
        links.append(_link("-".join(axes), lines, points))
    order = [axis.name for axis in mesh.spatial]
    return sorted(links, key=lambda link: order.index(link.axis) if link.axis in order else len(order)), fits


def rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """
    Make times monotone in size: times that fall are noise, and pools of neighbours get the median of their logarithms.

    This is the isotonic regression by least absolute deviations, by pooling adjacent violators (Ayer and others, 1955);
    one slow measurement among small sizes does not raise them all.
    """
    pools: list[list[float]] = []
    for _, seconds in points:
        pool = [math.log(seconds)]
        while pools and statistics.median(pools[-1]) > statistics.median(pool):
            pool = pools.pop() + pool
        pools.append(pool)
    middles = [math.exp(statistics.median(pool)) for pool in pools for _ in pool]
    return [(size, middle) for (size, _), middle in zip(points, middles, strict=True)]


def _link(name: str, lines: Mapping[str, Line], points: Sequence[tuple[str, float, float]]) -> Link:
    transfers = [line for curve, line in lines.items() if curve.partition(":")[0] == TRANSFER]
    slowest = max(transfers, key=lambda line: line.beta, default=None)
    plain = slowest or lines.get("all_gather") or lines.get("all_reduce")
    if plain is None:
        raise ProfileError(f"no collective along {name} was measured; measure longer, or continue with --resume")
    measured = tuple(
        (kind, line.alpha, line.beta) for kind, line in sorted(lines.items()) if kind != TRANSFER and ":" not in kind
    )
    return Link(name, plain.alpha, max(plain.beta, _LEAST_BETA), measured, tuple(points))


def _counted(kind: str, size: float, parts: int) -> float:
    """Return the bytes that the model of `ir.cluster` multiplies by beta."""
    if kind in (TRANSFER, "broadcast"):
        return size
    return (2 if kind == "all_reduce" else 1) * size * (parts - 1) / parts


def kinds_of(journal: Journal, samples: Sequence[OpSample]) -> dict[str, list[int]]:
    """Return the ranks of each kind of device, with one name and about one speed."""
    names = [name for name, _ in journal.about["devices"]]
    slowness = _slowness(journal, samples, len(names))
    kinds: dict[str, list[int]] = {}
    for name in dict.fromkeys(names):
        ranks = sorted((rank for rank in range(len(names)) if names[rank] == name), key=lambda rank: slowness[rank])
        groups = [[ranks[0]]]
        for rank in ranks[1:]:
            if slowness[rank] > _ALIKE * slowness[groups[-1][0]]:
                groups.append([])
            groups[-1].append(rank)
        for number, group in enumerate(groups):
            kinds[name if number == 0 else f"{name}-slower{number}"] = sorted(group)
    return kinds


def _slowness(journal: Journal, samples: Sequence[OpSample], ranks: int) -> list[float]:
    """Return, by rank, how many times longer than on the fastest rank an op takes, as the median over ops."""
    keys = {sample.work.key for sample in samples if sample.work.flops} & journal.seconds.keys()
    ratios: list[list[float]] = [[] for _ in range(ranks)]
    for key in keys:
        middle = [middle_seconds(journal.quiet_rounds(key), [rank]) for rank in range(ranks)]
        for rank, seconds in enumerate(middle):
            ratios[rank].append(seconds / min(middle))
    return [statistics.median(of_rank) if of_rank else 1.0 for of_rank in ratios]


def _device(
    kind: str, ranks: Sequence[int], journal: Journal, samples: Sequence[OpSample]
) -> tuple[Device, list[FittedNumbers]]:
    seconds = op_seconds_of(journal, samples, ranks)
    if not any(sample.work.flops for sample in seconds):
        raise ProfileError("no op was measured; measure longer, or continue with --resume")
    rates, fits = _rates(kind, seconds)
    device = Device(
        kind,
        _flops(seconds),
        _bandwidth(seconds),
        min(journal.about["devices"][rank][1] for rank in ranks),
        min(spent for sample, spent in seconds.items() if sample.work.bytes),
        rates,
        overhead=middle_seconds(journal.quiet_rounds(OVERHEAD), ranks) if OVERHEAD in journal.seconds else 0.0,
        block=1.0 if kind.startswith("cpu") else _CUDA_BLOCK,
    )
    return device, fits


def op_seconds_of(journal: Journal, samples: Sequence[OpSample], ranks: Sequence[int]) -> dict[OpSample, float]:
    """Return the seconds of each measured op, as the mean over `ranks`."""
    measured = (sample for sample in samples if sample.work.key in journal.seconds)
    return {sample: middle_seconds(journal.quiet_rounds(sample.work.key), ranks) for sample in measured}


def _rates(kind: str, seconds: Mapping[OpSample, float]) -> tuple[tuple[OpRate, ...], list[FittedNumbers]]:
    """Fit a rate for each family and dtype; return the rates and the fits."""
    rates: list[OpRate] = []
    fits: list[FittedNumbers] = []
    for rate, residuals in fit_rates([(sample.work, spent) for sample, spent in seconds.items()]):
        rates.append(rate)
        errors = [abs(residual) for residual in residuals] or [0.0]
        numbers = {"FLOP/s": rate.flops, "bytes/s": rate.bandwidth, "launch": rate.launch}
        name = f"{kind}: {rate.family or 'others'} in {rate.dtype or 'any dtype'}"
        fits.append(FittedNumbers(name, numbers, len(residuals), statistics.median(errors), max(errors)))
    return tuple(rates), fits


def _flops(seconds: Mapping[OpSample, float]) -> tuple[tuple[str, float], ...]:
    """Return, by dtype, the most floating-point operations per second that an op reached."""
    highest: dict[str, float] = {}
    for sample, spent in seconds.items():
        if sample.work.flops:
            highest[sample.work.dtype] = max(highest.get(sample.work.dtype, 0.0), sample.work.flops / spent)
    return tuple(sorted(highest.items()))


def _bandwidth(seconds: Mapping[OpSample, float]) -> float:
    """Return the bytes per second of the largest copy, or of the op that moves most bytes if no copy was measured."""
    copies = [sample for sample in seconds if sample.work.family == COPY]
    largest = max(copies or seconds, key=lambda sample: sample.work.bytes)
    return largest.work.bytes / seconds[largest]


def with_table(cluster: Cluster, journal: Journal, samples: Sequence[OpSample] = ()) -> Cluster:
    """
    Add the journal's seconds of ops to the table of `cluster`, replacing its entries for the same ops.

    Ops take longer in a plan than in a loop. The fitted rates of each family are scaled until its measured ops take as
    long in total as measured; otherwise an op without a measurement would look faster.

    Args:
        samples: the work of the journal's ops.
    """
    devices: list[Device] = []
    for kind, device in enumerate(cluster.devices):
        ranks = [rank for rank, placed in enumerate(cluster.placement) if placed == kind]
        keys = journal.seconds if ranks else ()
        table = {key: middle_seconds(journal.quiet_rounds(key), ranks) for key in keys}
        rates = _corrected(device, _times(journal, samples if ranks else (), ranks))
        devices.append(replace(device, table=tuple({**dict(device.table), **table}.items()), rates=rates))
    return replace(cluster, devices=tuple(devices))


def _times(journal: Journal, samples: Sequence[OpSample], ranks: Sequence[int]) -> dict[OpWork, float]:
    """Return the seconds of each measured op, by its work, as the mean over `ranks`."""
    return {sample.work: seconds for sample, seconds in op_seconds_of(journal, samples, ranks).items()}


def _corrected(device: Device, measured: Mapping[OpWork, float]) -> tuple[OpRate, ...]:
    """Scale the rates of each family so that its measured ops take as long in total as measured."""
    by_family: dict[tuple[str, str], list[tuple[OpRate, OpWork, float]]] = {}
    for work, seconds in measured.items():
        if work.flops or work.bytes:
            rate = op_rate(device, work.family, work.dtype)
            by_family.setdefault((work.family, work.dtype), []).append((rate, work, seconds))
    rates = {(rate.family, rate.dtype): rate for rate in device.rates}
    for (family, dtype), ops in by_family.items():
        fitted = sum(rate.seconds(work.flops, work.bytes) for rate, work, _ in ops)
        slower = sum(seconds for _, _, seconds in ops) / fitted
        rate = ops[0][0]
        rates[family, dtype] = replace(
            rate,
            family=family,
            dtype=dtype,
            flops=rate.flops / slower,
            bandwidth=rate.bandwidth / slower,
            launch=rate.launch * slower,
        )
    return tuple(rates.values())


def _interference(journal: Journal) -> Interference:
    if not journal.interference:
        return Interference()
    compute, communication = (statistics.median(column) for column in zip(*journal.interference, strict=True))
    delays: list[tuple[float, float]] = []
    for stretch in zip(*journal.delays, strict=True):
        computed, longer = (statistics.median(column) for column in zip(*stretch, strict=True))
        if computed > (delays[-1][0] if delays else 0.0) and longer > 0.0:
            delays.append((computed, longer))
    return Interference(compute, communication, tuple(delays))


@dataclass(frozen=True)
class Output:
    """
    The contents of a profile's output file.

    Args:
        base: an existing cluster that receives the times of the ops, or None to measure a new cluster.
        in_step: ops that were timed in a step; their times correct the rates of a new cluster.
    """

    name: str
    samples: tuple[OpSample, ...]
    base: Cluster | None = None
    in_step: tuple[OpSample, ...] = ()

    def profile(self, journal: Journal) -> Profile:
        """
        Return the cluster with its fits and missing measurements.

        Raises:
            ProfileError: there are too few measurements for a cluster.
        """
        if self.base is None:
            return profile_of(journal, self.samples, self.name, self.in_step)
        return Profile(with_table(self.base, journal, self.samples), (), missing_of(journal, self.samples))

    def write(self, journal: Journal, path: Path) -> Profile:
        """Write the cluster file atomically."""
        profile = self.profile(journal)
        write_atomically(path, profile_text(profile))
        return profile


def profile_text(profile: Profile) -> str:
    """Return the text of a cluster file."""
    lines = [comment(f"{fit.what}: {fit_text(fit)}") for fit in profile.fits]
    if lines:
        lines.insert(0, "# Fitted to measured times, with the median and the largest relative error:")
    if profile.missing:
        is_partial = any(not why.startswith("one call takes") for why in profile.missing.values())
        lines += ["# PARTIAL: not everything was measured." if is_partial else "# Left out:"]
        lines += [comment(f"  {what}: {why}") for what, why in profile.missing.items()]
    return "\n".join([*lines, "", cluster_toml(profile.cluster)])


def fit_text(fit: FittedNumbers) -> str:
    """Return the numbers of a fit in a line."""
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in fit.found.items())
    return f"{numbers}; {fit.points} points, errors {fit.middle_error:.1%} and {fit.worst_error:.1%}"
