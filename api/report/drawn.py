"""The sections of a report that have charts: the timeline, the memory, and the communication between ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...ir.measured_steps import step_seconds
from ...ir.units import bytes_text, seconds_text
from ...passes.analysis.simulation.held import HeldBytes
from ...passes.analysis.simulation.measured import pairs_of
from ...passes.analysis.simulation.pairs import bytes_between
from ...passes.analysis.simulation.results import COMPUTE
from ...passes.analysis.simulation.trace import class_name
from .charts import MOST_STAGES, matrix, memory_over_time, peaks_by_rank, timeline
from .content import Chart, PageSection, PageTable, Text
from .planned import Planned

_MOST_PLACES = 64
"""The number of rows of the communication matrix above which ranks are joined."""

_MOST_PAIRS = 10

_MOST_MEMORY = 4


def timeline_section(plan: Planned) -> PageSection:
    """Return the section with the timeline of the predicted step, and of the measured one if there is one."""
    simulation = plan.simulation
    shown = len(plan.busiest[:MOST_STAGES])
    blocks: list[Text | PageTable | Chart] = [
        Text(
            f"The predicted step takes {seconds_text(simulation.seconds)}. Ranks that behave the same are one class "
            f"(there are {len(simulation.classes)}), and the class of each stage that computes longest is shown"
            + (f", for the first {shown} of {len(plan.busiest)} stages" if shown < len(plan.busiest) else "")
            + ". A row is a compute stream, or the channel of the collectives over some axes, or the channel of the"
            " transfers between two stages. A click on a name of the legend hides its bars."
        )
    ]
    measured = [pair.rank for pair in pairs_of(simulation, plan.measured)] if plan.measured is not None else []
    if plan.measured is not None:
        seconds, count = seconds_text(step_seconds(plan.measured.middle)), len(plan.measured.steps)
        of = f"the step of median length of {count}" if count > 1 else "one step"
        blocks.append(Text(f"The measured step takes {seconds} ({of}); its rows are below the predicted ones."))
    else:
        command = f"shardwright run {plan.folder} --overlap {plan.folder}/measured.json"
        blocks.append(Text(f"To see a measured step beside the predicted one, measure it: `{command}`"))
    rows = [
        (class_name(each), stream, seconds_text(seconds), f"{seconds / (simulation.seconds or 1.0):.0%}")
        for each in plan.busiest
        for stream, seconds in simulation.busy_seconds(each.number).items()
    ]
    says = "Horizontal bars of computing and communicating over the time of a step; the table has their totals."
    blocks.append(Chart("Timeline", timeline(plan, measured), says))
    blocks.append(
        PageTable("Busy seconds of each stream", ("ranks", "stream", "busy", "of the step"), rows, folded=True)
    )
    if measured:
        blocks.append(_beside(plan))
    return PageSection("timeline", "Timeline of the step", blocks)


def _beside(plan: Planned) -> PageTable:
    """Return a table of the predicted and the measured busy seconds of each stream."""
    assert plan.measured is not None
    rows: list[tuple[str, ...]] = []
    for pair in pairs_of(plan.simulation, plan.measured):
        measured = {COMPUTE: pair.rank.compute_seconds}
        for each in pair.rank.traffic:
            measured[each.channel] = measured.get(each.channel, 0.0) + (each.end or each.start) - each.start
        predicted = plan.simulation.busy_seconds(pair.number)
        for stream in dict.fromkeys([*predicted, *measured]):
            texts = (seconds_text(each.get(stream, 0.0)) for each in (predicted, measured))
            rows.append((f"rank {pair.rank.rank}", stream, *texts))
    return PageTable("Predicted and measured busy seconds", ("rank", "stream", "predicted", "measured"), rows)


def memory_section(plan: Planned) -> PageSection:
    """Return the section with the memory of ranks over time by role, and the peak of each rank."""
    held = HeldBytes(plan.simulation)
    fullest = {
        each.stage: max((c for c in plan.simulation.classes if c.stage == each.stage), key=held.peak)
        for each in plan.busiest
    }
    peak, memory = plan.report["peak"], plan.cluster.memory
    blocks: list[Text | PageTable | Chart] = [
        Text(
            f"The largest peak is {bytes_text(peak['bytes'])}, in {peak['at']}: {peak['bytes'] / memory:.0%} of the "
            f"{bytes_text(memory)} of a device. Work space inside kernels is not counted."
        )
    ]
    says = "The bytes that a rank holds over the time of a step, stacked by role; the tables have the peaks."
    for ranks in list(fullest.values())[:_MOST_MEMORY]:
        title = f"Memory of {class_name(ranks)}, by role"
        blocks.append(Chart(title, memory_over_time(plan, held, ranks), says))
    if len(fullest) > _MOST_MEMORY:
        blocks.append(Text(f"The first {_MOST_MEMORY} of {len(fullest)} stages are shown."))
    roles = [(role, bytes_text(size), f"{size / (peak['bytes'] or 1):.1%}") for role, size in peak["roles"].items()]
    blocks.append(PageTable("The largest peak by role", ("role", "bytes", "of the peak"), roles))
    largest = [(each["value"], bytes_text(each["bytes"])) for each in peak["largest"]]
    blocks.append(PageTable("The largest values at this peak", ("value", "bytes"), largest, folded=True))
    peaks = plan.report["peak_bytes"]
    if len(set(peaks)) > 1:
        blocks.append(Chart("Peak of each rank", peaks_by_rank(peaks), "A bar for the peak memory of each rank."))
    else:
        blocks.append(Text(f"All {len(peaks)} ranks have the same peak."))
    return PageSection("memory", "Memory", blocks)


def communication_section(plan: Planned) -> PageSection:
    """Return the section with the bytes that ranks send to one another."""
    sent = bytes_between(plan.simulation)
    title = "Communication between ranks"
    if not sent.any():
        return PageSection("communication", title, [Text("No rank sends anything.")])
    places = places_of(len(sent))
    count = 1 + max(places)
    joined = np.zeros((count, count))
    np.add.at(joined, tuple(np.meshgrid(places, places, indexing="ij")), sent)
    names = names_of(places)
    hosts = [plan.cluster.host(rank) if rank < plan.cluster.mesh.device_count else 0 for rank in range(len(sent))]
    rows = list(_totals(sent, hosts).items())
    intro = (
        "The bytes that ranks send in a step. Collectives are counted as rings of the ranks of a group in their order, "
        "an all-to-all from each rank to each other, and hierarchical ones by their phases; the library may choose "
        "other routes."
    )
    pairs = sorted(zip(*np.nonzero(sent), strict=True), key=lambda pair: -sent[pair])[:_MOST_PAIRS]
    listed = [(f"rank {a} to rank {b}", bytes_text(float(sent[a, b]))) for a, b in pairs]
    says = "A coloured square for each pair of sender (rows) and receiver (columns); darker squares have more bytes."
    blocks = [
        Text(
            intro
            + ("" if count == len(sent) else " Ranks are joined to groups; bytes within a group are on the diagonal.")
        ),
        Chart("Bytes from rank to rank", matrix(joined, names), says),
        PageTable("Totals", ("", "bytes in a step"), [(name, bytes_text(size)) for name, size in rows]),
        PageTable("The largest pairs", ("pair", "bytes in a step"), listed, folded=True),
    ]
    return PageSection("communication", title, blocks)


def places_of(ranks: int) -> list[int]:
    """Return the row of the matrix for each rank; if there are many ranks, neighbours share a row."""
    size = -(-ranks // _MOST_PLACES)
    return [rank // size for rank in range(ranks)]


def names_of(places: list[int]) -> list[str]:
    """Return the ranks in each row of the matrix, as `8-15`."""
    members: dict[int, list[int]] = {}
    for rank, place in enumerate(places):
        members.setdefault(place, []).append(rank)
    return [str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}" for ranks in members.values()]


def _totals(sent: NDArray[np.float64], hosts: list[int]) -> Mapping[str, float]:
    same = np.equal.outer(np.array(hosts), np.array(hosts))
    busiest = int(sent.sum(axis=1).argmax())
    return {
        "between devices of one host": float(sent[same].sum()),
        "between hosts": float(sent[~same].sum()),
        f"sent by rank {busiest}, which sends most": float(sent[busiest].sum()),
    }
