"""The cluster that fits a journal: alpha and beta of every collective, rates of every family of ops, measured times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.cluster import Cluster, Device, Interference, Link
from ...ir.mesh import Axis, Mesh
from ...ir.op_cost import COPY, OpWork, op_rate
from ...ir.op_rate import OpRate
from .fit import Line, fit_line
from .journal import Journal, ProfileError
from .op_fit import fit_rates
from .samples import OpSample
from .tasks import OVERHEAD, TRANSFER, ExchangeTask, exchanges, groups_of

_LEAST_BETA = 1e-12
"""Seconds per byte where no byte was seen to cost anything, as among ranks of one."""

_CUDA_BLOCK = 512.0
"""The block size in bytes of torch's CUDA allocator: every tensor gets a multiple of it."""

_ALIKE = 1.4
"""Devices of one name whose speeds are apart by more than this are of several kinds."""

_FREE = Line(1e-6, _LEAST_BETA)
"""What an axis of one rank has."""


@dataclass(frozen=True)
class FittedNumbers:
    """What was fitted, for people: what to, the numbers, of the relative errors the middle and the largest."""

    what: str
    found: Mapping[str, float]
    points: int
    middle_error: float
    worst_error: float


@dataclass(frozen=True)
class Profile:
    """A cluster, what was fitted to get it, and by task what is missing, and why."""

    cluster: Cluster
    fits: tuple[FittedNumbers, ...]
    missing: Mapping[str, str]


def middle_seconds(rounds: Sequence[Sequence[float]], ranks: Iterable[int] | None = None) -> float:
    """
    The seconds of a task: the middle round's, of its slowest rank, or of the mean of `ranks`.
    """
    if ranks is None:
        return statistics.median(max(by_rank) for by_rank in rounds)
    chosen = list(ranks)
    return statistics.median(statistics.fmean(by_rank[rank] for rank in chosen) for by_rank in rounds)


def mesh_of(journal: Journal) -> Mesh:
    """The mesh that a journal is of."""
    return Mesh(tuple(Axis(name, size) for name, size in journal.about["mesh"]))


def profile_of(journal: Journal, samples: Sequence[OpSample], name: str, in_step: Sequence[OpSample] = ()) -> Profile:
    """
    The cluster that was measured.

    Args:
        in_step: ops that were timed in a step, where they take longer than in a loop; rates are corrected by them.

    Raises:
        ProfileError: too little was measured for one that can be planned for; the message says what is missing.
    """
    mesh = mesh_of(journal)
    links, fits = _links(journal, mesh)
    kinds = kinds_of(journal, samples)
    devices: list[Device] = []
    for kind, ranks in kinds.items():
        device, found = _device(kind, ranks, journal, samples)
        devices.append(replace(device, rates=_corrected(device, _times(journal, in_step, ranks))))
        fits += found
    places = list(kinds)
    placement = tuple(
        next(places.index(kind) for kind, ranks in kinds.items() if rank in ranks) for rank in range(mesh.device_count)
    )
    cluster = Cluster(name, mesh, tuple(devices), placement, tuple(links), _interference(journal))
    return Profile(cluster, tuple(fits), missing_of(journal, samples))


def missing_of(journal: Journal, samples: Sequence[OpSample]) -> dict[str, str]:
    """What was not measured, and why."""
    missing = dict(journal.left_out)
    if journal.trouble:
        names = [each.work.key for each in samples]
        names += [f"{each.series}" for each in _exchanges(journal, mesh_of(journal))]
        measured = {*journal.seconds, *(name.rpartition(" of ")[0] for name in journal.seconds)}
        missing |= {name: journal.trouble for name in names if name not in measured and name not in missing}
    return missing


def _exchanges(journal: Journal, mesh: Mesh) -> list[ExchangeTask]:
    """One of each series."""
    return exchanges(mesh, journal.about["backend"], (1024,))


def _points(journal: Journal, series: str) -> list[tuple[float, float]]:
    """The (bytes, seconds) of a series of exchanges, ascending."""
    found: list[tuple[float, float]] = []
    for name in journal.seconds:
        of, _, size = name.partition(" of ")
        if of == series:
            found.append((float(size.removesuffix(" bytes")), middle_seconds(journal.quiet_rounds(name))))
    return sorted(found)


def _links(journal: Journal, mesh: Mesh) -> tuple[list[Link], list[FittedNumbers]]:
    fits: list[FittedNumbers] = []
    links = [Link(axis.name, _FREE.alpha, _FREE.beta) for axis in mesh.spatial if axis.size == 1]
    for axes in groups_of(mesh):
        parts = mesh.parts(axes)
        lines: dict[str, Line] = {}
        points: list[tuple[str, float, float]] = []
        for each in (each for each in _exchanges(journal, mesh) if each.axes == axes):
            seen = _points(journal, each.series)
            if not seen:
                continue
            if each.kind == TRANSFER:
                # There and back.
                seen = [(size, seconds / 2) for size, seconds in seen]
            line = fit_line([(_counted(each.kind, size, parts), seconds) for size, seconds in seen])
            lines[each.curve] = line
            found = {"alpha": line.alpha, "beta": line.beta}
            fits.append(FittedNumbers(each.series, found, len(seen), line.middle_error, line.worst_error))
            if each.kind != TRANSFER:
                points += [(each.curve, size, seconds) for size, seconds in rising(seen)]
        links.append(_link("-".join(axes), lines, points))
    order = [axis.name for axis in mesh.spatial]
    return sorted(links, key=lambda link: order.index(link.axis) if link.axis in order else len(order)), fits


def rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """
    Times that never fall with the size: those that do are noise, and neighbours get the median of their logarithms.

    It is the isotonic regression by least absolute deviations, by pooling adjacent violators (Ayer and others, 1955);
    so one slow measurement among small sizes does not lift them all.
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
    """The bytes that the model of `ir.cluster` counts, by which beta is divided."""
    if kind in (TRANSFER, "broadcast"):
        return size
    return (2 if kind == "all_reduce" else 1) * size * (parts - 1) / parts


def kinds_of(journal: Journal, samples: Sequence[OpSample]) -> dict[str, list[int]]:
    """The ranks of each kind of device: of one name, and of about one speed."""
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
    """Of each rank, how many times longer than the fastest it takes for an op, in the middle of the ops."""
    keys = {each.work.key for each in samples if each.work.flops} & journal.seconds.keys()
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
    if not any(each.work.flops for each in seconds):
        raise ProfileError("no op was measured; measure longer, or continue with --resume")
    rates, fits = _rates(kind, seconds)
    device = Device(
        kind,
        _flops(seconds),
        _bandwidth(seconds),
        min(journal.about["devices"][rank][1] for rank in ranks),
        min(spent for each, spent in seconds.items() if each.work.bytes),
        rates,
        overhead=middle_seconds(journal.quiet_rounds(OVERHEAD), ranks) if OVERHEAD in journal.seconds else 0.0,
        block=1.0 if kind.startswith("cpu") else _CUDA_BLOCK,
    )
    return device, fits


def op_seconds_of(journal: Journal, samples: Sequence[OpSample], ranks: Sequence[int]) -> dict[OpSample, float]:
    """The seconds of each op that was measured, the mean over `ranks`."""
    measured = (each for each in samples if each.work.key in journal.seconds)
    return {each: middle_seconds(journal.quiet_rounds(each.work.key), ranks) for each in measured}


def _rates(kind: str, seconds: Mapping[OpSample, float]) -> tuple[tuple[OpRate, ...], list[FittedNumbers]]:
    """A rate for each family and dtype, for what other ops do, and for what is fitted beside them."""
    rates: list[OpRate] = []
    fits: list[FittedNumbers] = []
    for rate, residuals in fit_rates([(each.work, spent) for each, spent in seconds.items()]):
        rates.append(rate)
        errors = [abs(residual) for residual in residuals] or [0.0]
        found = {"FLOP/s": rate.flops, "bytes/s": rate.bandwidth, "launch": rate.launch}
        what = f"{kind}: {rate.family or 'others'} in {rate.dtype or 'any dtype'}"
        fits.append(FittedNumbers(what, found, len(residuals), statistics.median(errors), max(errors)))
    return tuple(rates), fits


def _flops(seconds: Mapping[OpSample, float]) -> tuple[tuple[str, float], ...]:
    """By dtype, the most floating-point operations per second that any op reached."""
    found: dict[str, float] = {}
    for each, spent in seconds.items():
        if each.work.flops:
            found[each.work.dtype] = max(found.get(each.work.dtype, 0.0), each.work.flops / spent)
    return tuple(sorted(found.items()))


def _bandwidth(seconds: Mapping[OpSample, float]) -> float:
    """The bytes per second of the largest copy; of the op that moves most, where none was measured."""
    copies = [each for each in seconds if each.work.family == COPY]
    largest = max(copies or seconds, key=lambda each: each.work.bytes)
    return largest.work.bytes / seconds[largest]


def with_table(cluster: Cluster, journal: Journal, samples: Sequence[OpSample] = ()) -> Cluster:
    """
    `cluster` with the seconds of ops, all that a journal has, replacing those that it had of the same ops.

    Ops take longer in a plan than in a loop of one. So that an op which was not measured is not the faster for it, the
    fitted rates of each family become those at which the ops that were measured take as long together as they did.

    Args:
        samples: what the journal's ops do.
    """
    devices: list[Device] = []
    for kind, device in enumerate(cluster.devices):
        ranks = [rank for rank, placed in enumerate(cluster.placement) if placed == kind]
        keys = journal.seconds if ranks else ()
        found = {key: middle_seconds(journal.quiet_rounds(key), ranks) for key in keys}
        rates = _corrected(device, _times(journal, samples if ranks else (), ranks))
        devices.append(replace(device, table=tuple({**dict(device.table), **found}.items()), rates=rates))
    return replace(cluster, devices=tuple(devices))


def _times(journal: Journal, samples: Sequence[OpSample], ranks: Sequence[int]) -> dict[OpWork, float]:
    """Return the seconds of each op that was measured, by its work, as the mean over `ranks`."""
    return {each.work: seconds for each, seconds in op_seconds_of(journal, samples, ranks).items()}


def _corrected(device: Device, measured: Mapping[OpWork, float]) -> tuple[OpRate, ...]:
    """The rates of a device, by family such that the ops that were measured take as long as they did, all together."""
    by_family: dict[tuple[str, str], list[tuple[OpRate, OpWork, float]]] = {}
    for work, seconds in measured.items():
        if work.flops or work.bytes:
            rate = op_rate(device, work.family, work.dtype)
            by_family.setdefault((work.family, work.dtype), []).append((rate, work, seconds))
    found = {(rate.family, rate.dtype): rate for rate in device.rates}
    for (family, dtype), ops in by_family.items():
        fitted = sum(rate.seconds(work.flops, work.bytes) for rate, work, _ in ops)
        slower = sum(seconds for _, _, seconds in ops) / fitted
        rate = ops[0][0]
        found[family, dtype] = replace(
            rate,
            family=family,
            dtype=dtype,
            flops=rate.flops / slower,
            bandwidth=rate.bandwidth / slower,
            launch=rate.launch * slower,
        )
    return tuple(found.values())


def _interference(journal: Journal) -> Interference:
    if not journal.interference:
        return Interference()
    compute, communication = (statistics.median(column) for column in zip(*journal.interference, strict=True))
    return Interference(compute, communication, tuple(_delays(journal)))


def _delays(journal: Journal) -> Iterator[tuple[float, float]]:
    """The delay after each stretch of computing, where there is any."""
    before = 0.0
    for stretch in zip(*journal.delays, strict=True):
        computed, longer = (statistics.median(column) for column in zip(*stretch, strict=True))
        if computed > before and longer > 0.0:
            yield computed, longer
            before = computed
