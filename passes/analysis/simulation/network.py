"""
Model the traffic between ranks: its queues, and how it shares the ports of the network.

Collectives over the same axes between the same ranks take turns, and so do transfers from one stage to another. Traffic
that passes a port at the same time shares its bandwidth: all rates grow equally until a port is full, then only the
traffic that avoids this port gets faster (max-min fairness). A collective in all of its groups at once just fills its
busiest port, since its cost already includes the contention between its groups. No port is used during latency. The
tasks of one transfer take turns at its ports (`transfer_time.py`), and fill them for a part of its time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from xdsl.ir import Operation

from ....dialects.compute import element_bytes, value_bytes
from ....dialects.pipe import TransferOp
from ....dialects.staged import Stages
from ....ir.mesh import AxisKind
from ....ir.unit_tasks import Task
from .places import Division, Place
from .transfer_time import task_seconds

TRANSFER = "transfer"
"""The kind of traffic between stages; traffic within a stage has the kind of its collective."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """
    A collective in all of its groups, or a transfer from one stage to another.

    Args:
        kind: kind of collective, or `transfer`.
        ends: the place of a collective, or both places of a transfer, with the classes of their ranks.
        axes: axes of a collective; empty for a transfer.
        seconds: undisturbed seconds.
        latency: the part of these seconds before bytes flow.
        sent: bytes that the rank sends that sends most.
        edges: for a transfer, its senders, receivers and bytes, by ranks of the job.
    """

    op: Operation
    kind: str
    ends: tuple[Division, ...]
    axes: tuple[str, ...]
    seconds: float
    latency: float
    sent: float
    edges: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, eq=False)
class Channel:
    """A queue of traffic between ranks of the classes `members`; `name` contains its axes or stages."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Flow:
    """
    Traffic in one channel.

    Args:
        loads: the part of each port that it fills at full speed; only ports that other channels use, too.
    """

    channel: Channel
    loads: Mapping[str, float] = field(default_factory=dict[str, float])


class Network:
    """The channels and ports of a step."""

    def __init__(self, traffic: Iterable[Traffic]) -> None:
        self._flows: dict[object, dict[int, Flow]] = {}
        between: dict[tuple[Division, ...], Channel] = {}
        for item in dict.fromkeys(traffic):
            if (key := _key(item)) not in self._flows:
                self._flows[key] = _crossing(item, between) if item.edges else _grouped(item.ends[0], item.axes)
        self._flows = _contended(self._flows)

    def flow(self, traffic: Traffic, number: int) -> Flow:
        """Return the flow of traffic that ranks of a class take part in."""
        return self._flows[_key(traffic)][number]


def _key(traffic: Traffic) -> object:
    """Return a key that is equal for traffic with equal flows."""
    return traffic if traffic.edges else (traffic.ends[0].first, traffic.axes)


def _crossing(traffic: Traffic, between: dict[tuple[Division, ...], Channel]) -> dict[int, Flow]:
    source, target = traffic.ends
    members = (*source.numbers, *target.numbers)
    name = f"stage {source.place.stage} to {target.place.stage}"
    channel = between.setdefault(traffic.ends, Channel(name, members))
    times = _port_seconds(source.place, traffic.edges)
    # Ports whose tasks wait for their turn are busy for only a part of the time.
    most = max(traffic.seconds - traffic.latency, *times.values(), 0.0) or 1.0
    flow = Flow(channel, {port: seconds / most for port, seconds in times.items()})
    return dict.fromkeys(members, flow)


def _grouped(division: Division, axes: tuple[str, ...]) -> dict[int, Flow]:
    """Return the flows of a collective by class: the groups of the same classes share one flow."""
    place = division.place
    by_classes: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for group in place.cluster.mesh.groups(axes):
        by_classes[tuple(sorted(division.class_of[rank] for rank in group))].append(group)
    loads = {classes: _port_seconds(place, _rings(place, groups)) for classes, groups in by_classes.items()}
    total: defaultdict[str, float] = defaultdict(float)
    for by_port in loads.values():
        for port, seconds in by_port.items():
            total[port] += seconds
    most = max(total.values(), default=0.0) or 1.0
    flows: dict[int, Flow] = {}
    for classes, by_port in loads.items():
        members = tuple(dict.fromkeys(classes))
        flow = Flow(Channel(" ".join(axes), members), {port: seconds / most for port, seconds in by_port.items()})
        flows |= dict.fromkeys(members, flow)
    return flows


def _rings(place: Place, groups: Iterable[Sequence[int]]) -> Iterable[tuple[int, int, float]]:
    for group in groups:
        yield from ((place.ranks[a], place.ranks[b], 1.0) for a, b in place.ring(group) if a != b)


def _port_seconds(place: Place, edges: Iterable[tuple[int, int, float]]) -> dict[str, float]:
    """Return the seconds that each port is busy when ranks of the job send bytes along edges."""
    busy: defaultdict[str, float] = defaultdict(float)
    for sender, receiver, sent in edges:
        route = place.routes.between(sender, receiver)
        for port, bandwidth in zip(route.ports, route.capacities, strict=True):
            busy[port] += sent / bandwidth
    return busy


def _contended(flows: Mapping[object, Mapping[int, Flow]]) -> dict[object, dict[int, Flow]]:
    """Return the flows with only the ports that several channels use, and one of several ports with equal loads."""
    loads: defaultdict[str, dict[Flow, float]] = defaultdict(dict)
    for flow in dict.fromkeys(flow for by_class in flows.values() for flow in by_class.values()):
        for port, load in flow.loads.items():
            loads[port][flow] = load
    distinct = {
        tuple(by_flow.items()): port for port, by_flow in loads.items() if len({flow.channel for flow in by_flow}) > 1
    }
    shared = set(distinct.values())
    reduced: dict[Flow, Flow] = {}
    result: dict[object, dict[int, Flow]] = {}
    for key, by_class in flows.items():
        result[key] = {}
        for number, flow in by_class.items():
            if flow not in reduced:
                reduced[flow] = replace(flow, loads={port: load for port, load in flow.loads.items() if port in shared})
            result[key][number] = reduced[flow]
    return result


def fair_rates(loads: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the rates of flows with these loads that run at the same time; 1 is undisturbed."""
    rates = [1.0] * len(loads)
    left = dict.fromkeys((port for load_of in loads for port in load_of), 1.0)
    free = set(range(len(loads)))
    while free:
        wanted: defaultdict[str, float] = defaultdict(float)
        for index in free:
            for port, load in loads[index].items():
                wanted[port] += load
        level, full = min(((left[port] / load, port) for port, load in wanted.items() if load), default=(1.0, ""))
        if level >= 1.0:
            break
        stopped = {index for index in free if loads[index].get(full)}
        for index in stopped:
            rates[index] = level
            for port, load in loads[index].items():
                left[port] -= level * load
        free -= stopped
    return rates


def transfer_traffic(op: TransferOp, known: Stages, divisions: Sequence[Division]) -> Traffic:
    """Return the traffic of a transfer for one part of the loop; if parts differ, for the slowest part."""
    by_stage = {division.place.stage: division for division in divisions}
    source, target = by_stage[known.of_value(op.operand)], by_stage[known.of_value(op.result)]
    place, unit = source.place, element_bytes(op.operand)
    by_part: defaultdict[int, list[Task]] = defaultdict(list)
    for task in op.tasks_in_turn or ():
        by_part[task.part].append(task)
    if by_part:
        timed = [(task_seconds(tasks, unit, place.routes), tasks) for tasks in by_part.values()]
        seconds, tasks = max(timed, key=lambda pair: pair[0])
        edges = [
            (a, b, float(task.elements * unit)) for task in tasks for a, b in pairwise((task.sender, *task.receivers))
        ]
    else:
        edges = [(place.ranks[0], target.place.ranks[0], value_bytes(op.operand) / _parts(place))]
        seconds = max(_port_seconds(place, edges).values()) + place.routes.between(*edges[0][:2]).latency
    latency = max(place.routes.between(sender, receiver).latency for sender, receiver, _ in edges)
    sent: defaultdict[int, float] = defaultdict(float)
    for sender, _, size in edges:
        sent[sender] += size
    return Traffic(op, TRANSFER, (source, target), (), seconds, latency, max(sent.values()), tuple(edges))


def _parts(place: Place) -> int:
    mesh = place.cluster.mesh
    return mesh.parts(axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL)
