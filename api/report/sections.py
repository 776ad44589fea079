"""The sections of a report that state figures: the plan, its cluster, its candidates, and its bound."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import prod

from ...ir.cluster import Cluster
from ...ir.units import bytes_text, seconds_text
from ...passes.analysis.simulation.critical_path import critical_path, seconds_by_op
from ...passes.analysis.simulation.longest import longest_waiting, longest_waits, seconds_by_name
from ...passes.analysis.simulation.names import category
from ...passes.analysis.simulation.results import RankClass
from ...passes.analysis.simulation.trace import class_name
from ...passes.planning.legend import legend
from ...passes.planning.summary import Tried
from ..plan_report import PlanReport, mesh_text, plan_rows
from ..why_not import WhyNot, figures, why_not
from .content import BLUE, GREEN, GREY, ORANGE, VERMILION, BarPart, PageSection, PageTable, TermList, Text
from .planned import Planned

MOST_ROWS = 12
"""The number of longest waits, and of ops of the critical path, that are listed."""

_FASTER_THAN = ("data parallelism", "ZeRO 1", "ZeRO 3", "tensor parallelism", "a pipeline")
"""The kinds of plans that people write by hand, which the plan is compared with."""

_COMPUTE, _WAIT, _BOUND, _OTHER = BLUE, VERMILION, GREEN, GREY


def plan_section(plan: Planned) -> PageSection:
    """Return the section with the figures of the plan, and its speed-up over the plans that people write by hand."""
    report = plan.report
    facts = {
        "model": report["name"],
        "cluster": f"{report['cluster']}, {report['ranks']} ranks",
        "mesh": mesh_text(report),
        **(
            {"stages": f"{len(report['stages'])}, of {', '.join(map(str, report['stages']))} devices"}
            if report["stages"]
            else {}
        ),
        **({"idle ranks": ", ".join(map(str, report["idle"]))} if report["idle"] else {}),
        **plan_rows(report),
    }
    blocks: list[PageTable | TermList | Text] = [PageTable("", ("", ""), list(facts.items()))]
    rows = list(_speedups(report)) if report["chosen"] is not None else []
    if len(rows) > 1:
        longest = max(step for _, step in rows) or 1.0
        planned = report["predicted_step_s"] or 1.0
        blocks.append(
            PageTable(
                "Speed-up over the plans that people write by hand",
                ("plan", "step", "the plan is faster by"),
                [(name, seconds_text(step), f"{step / planned:.2f}x") for name, step in rows],
                [
                    (BarPart(name, step / longest, _COMPUTE if number else _BOUND),)
                    for number, (name, step) in enumerate(rows)
                ],
            )
        )
    if terms := legend([report["chosen"] or ""]):
        blocks.append(TermList("Terms in the name of the plan", terms))
    return PageSection("plan", "The plan", blocks)


def _speedups(report: PlanReport) -> Iterator[tuple[str, float]]:
    """Yield the plan, the best candidates of usual kinds, and the best candidate on one device, with their steps."""
    yield "the plan", report["predicted_step_s"]
    by_kind = {each.kind: each.best for each in why_not(report)}
    for kind in _FASTER_THAN:
        if (best := by_kind[kind]) is not None and best.step is not None and best.name != report["chosen"]:
            yield f"{kind}: {best.name}" + (" (an estimate)" if best.exposed is None else ""), best.step
    tried = [Tried.from_dict(each) for each in report["candidates"]]
    alone = [each for each in tried if each.family is not None and prod(each.family["mesh"].values()) == 1]
    if steps := [(each.step, each.name) for each in alone if each.step is not None]:
        step, name = min(steps)
        yield f"one device: {name}", step


def cluster_section(plan: Planned) -> PageSection:
    """Return the section with the devices and the links of the cluster."""
    cluster = plan.cluster
    counts = Counter(cluster.placement)
    devices = [
        (
            f"{device.kind}, measured" if device.rates or device.table else device.kind,
            str(counts[index]),
            ", ".join(f"{dtype} {_rate(rate, 'FLOP/s')}" for dtype, rate in device.flops),
            _rate(device.memory_bandwidth, "B/s"),
            bytes_text(device.memory),
            seconds_text(device.launch),
        )
        for index, device in enumerate(cluster.devices)
        if counts[index]
    ]
    head = ("device", "count", "peak rates", "memory bandwidth", "memory", "launch of an op")
    blocks = [
        PageTable("Devices", head, devices),
        PageTable("Links", ("link", "between", "bandwidth", "latency", "start of a collective"), list(_links(cluster))),
    ]
    return PageSection("cluster", "Cluster and links", blocks)


def _links(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    topology = cluster.topology
    for level in topology.levels if topology is not None else ():
        assert topology is not None
        inside = sum(host.count for host in topology.hosts if host.inside == level.name and host.devices > 1)
        nics = sum(host.count * host.nics for host in topology.hosts if host.nic == level.name)
        ends = [f"the devices of {inside} hosts"] if inside else []
        ends += [f"hosts, by {nics} NICs"] if nics else []
        bandwidth = _rate(level.bandwidth, "B/s")
        yield level.name, " and ".join(ends), bandwidth, seconds_text(level.latency), seconds_text(level.start)
    for link in cluster.links:
        bandwidth = _rate(1 / link.beta, "B/s") if link.beta else "as its level"
        measured = f", {len(link.points)} measured times" if link.points else ""
        yield link.axis, f"ranks along the axis{measured}", bandwidth, seconds_text(link.alpha), ""


def _rate(number: float, unit: str) -> str:
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.4g} {prefix}{unit}"
    return f"{number:.4g} {unit}"


def candidates_section(plan: Planned) -> PageSection:
    """Return the section with the candidates that lost, by kind and all of them, and the reasons."""
    report = plan.report
    title = "Candidates that lost, and why"
    if report["chosen"] is None or not report["candidates"]:
        text = "The plan was not made by a search over plans (its options fix it), so there are no candidates."
        return PageSection("candidates", title, [Text(text)])
    tried = list({each["name"]: Tried.from_dict(each) for each in report["candidates"]}.values())
    tried.sort(key=lambda each: (each.name != report["chosen"], each.step is None, each.step or 0.0))
    longest = max((each.step for each in tried if each.step is not None), default=1.0)
    rows = [(each.name, *figures(each), _why(each, report)) for each in tried]
    bars = [
        (BarPart("step", (each.step or 0.0) / longest, _BOUND if each.name == report["chosen"] else _COMPUTE),)
        for each in tried
    ]
    reasons = why_not(report)
    blocks: list[PageTable | TermList | Text] = [
        Text("A candidate whose reason is an estimate was not compiled, because its estimate exceeds the best step."),
        PageTable(
            "The best of each kind",
            ("kind", "best of its kind", "step", "exposed", "peak", "because"),
            list(_kinds(reasons)),
        ),
        PageTable(f"All {len(tried)} candidates", ("candidate", "step", "exposed", "peak", "why not"), rows, bars),
        TermList("Terms in the names of plans", legend(each.name for each in tried)),
    ]
    return PageSection("candidates", title, blocks)


def _kinds(reasons: Sequence[WhyNot]) -> Iterator[tuple[str, ...]]:
    for each in reasons:
        best = each.best or Tried("-", each.why)
        yield each.kind, best.name, *figures(best), each.why


def _why(each: Tried, report: PlanReport) -> str:
    if each.name == report["chosen"]:
        return "the plan"
    if each.same_as is not None:
        return f"the same strategy as {each.same_as}"
    return each.why or "slower"


def bound_section(plan: Planned) -> PageSection:
    """Return the section with the lower bound, the parts of the gap, the longest waits and the critical path."""
    report, simulation = plan.report, plan.simulation
    step = simulation.seconds or 1.0
    blocks: list[PageTable | Text] = [Text(_bound_text(plan))]
    rows: list[tuple[str, str, str]] = []
    bars: list[tuple[BarPart, ...]] = []
    if (bound := report["bound_s"]) is not None:
        rows.append(("lower bound", seconds_text(bound), "no plan of its family is faster"))
        bars.append((BarPart("lower bound", bound / step, _BOUND),))
    for ranks in plan.busiest:
        parts = list(_parts(plan, ranks))
        spent = ", ".join(f"{part.name} {part.share:.1%}" for part in parts)
        rows.append((class_name(ranks), seconds_text(simulation.seconds), spent))
        bars.append(tuple(parts))
    blocks.append(PageTable("The step of the busiest ranks", ("", "seconds", "of the step"), rows, bars))
    waiting = longest_waiting(simulation)
    waits = [
        (name, kind.replace("_", "-"), seconds_text(seconds), f"{seconds / step:.1%}")
        for (name, kind), seconds in longest_waits(simulation, waiting.number)[:MOST_ROWS]
        if seconds > 0
    ]
    title = f"Longest waits of {class_name(waiting)}"
    head = ("collective or transfer", "kind", "waited for", "of the step")
    blocks.append(PageTable(title, head, waits) if waits else Text("No rank waits for communication."))
    path = seconds_by_name(seconds_by_op(simulation, critical_path(simulation)))[:MOST_ROWS]
    rows = [(name, seconds_text(seconds), f"{seconds / step:.1%}") for name, seconds in path]
    blocks.append(PageTable("Longest ops and collectives of the critical path", ("op", "seconds", "of the step"), rows))
    return PageSection("bound", "The lower bound and the gap", blocks)


def _bound_text(plan: Planned) -> str:
    report = plan.report
    step, bound = plan.simulation.seconds, report["bound_s"]
    if bound is None:
        return "The plan has no lower bound: it was not made by a search over plans, or none was proven for its family."
    busiest = max(plan.busiest, key=lambda each: plan.simulation.compute_seconds(each.number))
    computes = plan.simulation.compute_seconds(busiest.number)
    above = computes - bound
    compared = f"{seconds_text(abs(above))} {'longer' if above >= 0 else 'shorter'} than the bound"
    # The rest of the text says how the busiest rank spends its time, as the table does.
    family = (report["bound_of"] or "").partition(";")[0]
    gap, waits = seconds_text(max(step - bound, 0.0)), seconds_text(step - computes)
    return (
        f"No step is shorter than {seconds_text(bound)}, of {family}. The gap of {gap} "
        f"({1 - bound / step:.1%}) consists of {waits} in which the busiest rank does not compute, while it computes "
        f"{compared}. A better plan may exist within the gap; none is faster than the bound."
    )


def _parts(plan: Planned, ranks: RankClass) -> Iterator[BarPart]:
    """Yield the parts of the step of a class of ranks: phases, waits by kind, and the rest."""
    simulation, colours = plan.simulation, {"forward": _COMPUTE, "backward": ORANGE, "update": _BOUND}
    step = simulation.seconds or 1.0
    seconds: defaultdict[str, float] = defaultdict(float)
    for run in simulation.ops(ranks.number):
        seconds[category(run.op)] += run.end - run.start
    yield from (BarPart(phase, seconds[phase] / step, colour) for phase, colour in colours.items() if seconds[phase])
    waits: defaultdict[str, float] = defaultdict(float)
    for traffic, waited in simulation.waited(ranks.number).items():
        waits[traffic.kind] += waited
    for kind, waited in sorted(waits.items(), key=lambda pair: -pair[1]):
        if waited:
            yield BarPart(f"waits for {kind.replace('_', '-')}", waited / step, _WAIT)
    rest = 1.0 - (sum(seconds.values()) + sum(waits.values())) / step
    if rest > 5e-4:
        yield BarPart("other ranks to end", rest, _OTHER)
