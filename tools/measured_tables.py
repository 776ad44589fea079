"""Comparison of measured and predicted steps, as tables for a terminal and as a part of a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from ..ir.measured_steps import MeasuredFileError, MeasuredRank, MeasuredSteps, step_seconds
from ..ir.overlap_table import COLUMNS, cells
from ..ir.text_file import read_text
from ..ir.units import seconds_text
from ..passes.analysis.simulation.measured import PredictedVsMeasured, beside, pairs_of
from ..passes.analysis.simulation.names import numbered
from ..passes.analysis.simulation.overlap_report import overlaps
from ..passes.analysis.simulation.results import COMPUTE, Simulation
from ..passes.analysis.simulation.trace import Event, class_name, from_to
from .cli_arguments import command_line, tool_error
from .simulation_tables import OverlapRow

MOST_ROWS = 12
"""The number of longest collectives that are listed."""


def read_measured(path: str) -> MeasuredSteps:
    """Return the measured steps of a file; a DiagnosticError describes an invalid file."""
    try:
        return MeasuredSteps.parse(read_text(path))
    except (OSError, UnicodeDecodeError, MeasuredFileError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        again = command_line("run", "DIR", "--overlap", path)
        raise tool_error(f"{path} has no measured steps: {reason}", f"write one with: {again}") from error


def measured_tables(simulation: Simulation, measured: MeasuredSteps) -> Iterator[Table]:
    """
    Yield tables of the overlap in the predicted and measured steps, and of the longest collectives.

    Raises:
        NotThisStepError: as in `pairs_of`.
    """
    pairs = pairs_of(simulation, measured)
    yield _overlaps(simulation, measured, pairs)
    for pair in pairs:
        if pair.pairs:
            yield _traffic(simulation, pair)


def measured_record(simulation: Simulation, measured: MeasuredSteps) -> dict[str, object]:
    """
    Return the overlap in the measured steps, of the ranks that `measured_tables` compares, for JSON.

    Raises:
        NotThisStepError: as in `pairs_of`.
    """
    rows = [
        OverlapRow(f"rank {pair.rank.rank}", phase, channel, overlap).as_dict()
        for pair in pairs_of(simulation, measured)
        for (phase, channel), overlap in pair.rank.overlaps.items()
    ]
    return {"step": step_seconds(measured.middle), "steps": len(measured.steps), "overlap": rows}


def _overlaps(simulation: Simulation, measured: MeasuredSteps, pairs: Sequence[PredictedVsMeasured]) -> Table:
    seconds = seconds_text(simulation.seconds), seconds_text(step_seconds(measured.middle))
    steps = f"the median of {len(measured.steps)}" if len(measured.steps) > 1 else "one step"
    title = f"overlap of communication and computation: predicted step {seconds[0]}, measured {seconds[1]} ({steps})"
    table = Table(*COLUMNS[:3], "", *COLUMNS[3:], title=title)
    for pair in pairs:
        by_side = {"predicted": overlaps(simulation, pair.number), "measured": pair.rank.overlaps}
        who = f"rank {pair.rank.rank} of {class_name(simulation.classes[pair.number])}"
        for phase, channel in dict.fromkeys(row for found in by_side.values() for row in found):
            for side, found in by_side.items():
                if (overlap := found.get((phase, channel))) is not None:
                    names = (who, phase, channel) if side == "predicted" else ("", "", "")
                    table.add_row(*names, side, *cells(overlap))
    return table


def _traffic(simulation: Simulation, pair: PredictedVsMeasured) -> Table:
    """Return a table of the total seconds in flight of equal collectives, the longest measured ones first."""
    title = f"longest collectives and transfers of rank {pair.rank.rank}"
    table = Table("collective or transfer", "over", "count", "predicted", "measured", title=title)
    rows: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for run, each in pair.pairs:
        rows[numbered(run.traffic.op), each.channel].append(
            (run.end - run.start, (each.end or each.start) - each.start)
        )
    totals = {key: (sum(a for a, _ in times), sum(b for _, b in times)) for key, times in rows.items()}
    for (name, channel), (predicted, seconds) in sorted(totals.items(), key=lambda row: -row[1][1])[:MOST_ROWS]:
        count = str(len(rows[name, channel]))
        table.add_row(name, channel, count, seconds_text(predicted), seconds_text(seconds))
    return table


def with_measured(trace: Mapping[str, Any], simulation: Simulation, measured: MeasuredSteps) -> dict[str, Any]:
    """Return a trace of the simulated step, with an additional process for each measured rank."""
    events: list[Event] = list(trace["traceEvents"])
    first = 1 + max((event["tid"] for event in events), default=0)
    for rank in measured.middle:
        found = beside(simulation, rank)
        number = len(simulation.classes) + rank.rank
        added = list(_process(found.rank if found is not None else rank, number, first))
        first = 1 + max(event["tid"] for event in added)
        events += added
    # Names come first, then events in order of time.
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0.0)))
    other = {**trace["otherData"], "measured_step_seconds": step_seconds(measured.middle)}
    return {**trace, "traceEvents": events, "otherData": other}


def _process(rank: MeasuredRank, number: int, first: int) -> Iterator[Event]:
    channels = dict.fromkeys(each.channel for each in rank.traffic)
    streams = {stream: first + at for at, stream in enumerate((COMPUTE, *channels))}
    stage = f" (stage {rank.stage})" if rank.stage is not None else ""
    common: Event = {"ph": "M", "pid": number, "ts": 0.0}
    yield {**common, "tid": first, "name": "process_name", "args": {"name": f"measured: rank {rank.rank}{stage}"}}
    yield {**common, "tid": first, "name": "process_sort_index", "args": {"sort_index": number}}
    for stream, thread in streams.items():
        yield {**common, "tid": thread, "name": "thread_name", "args": {"name": stream}}
        yield {**common, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}
    for phase, spans in rank.computed.items():
        for start, end in spans:
            slice_: Event = {"ph": "X", "pid": number, "tid": streams[COMPUTE], "cat": phase, "args": {}}
            yield {**slice_, "name": phase, **from_to(start, end)}
    over: dict[str, float] = {}
    for each in rank.traffic:
        end = each.end or each.start
        # A channel carries one message at a time, in start order.
        start = max(each.start, over.get(each.channel, 0.0))
        over[each.channel] = max(end, start)
        told = {"started in": each.where, "bytes": each.bytes, "phase": each.phase}
        slice_ = {"ph": "X", "pid": number, "tid": streams[each.channel], "cat": each.kind, "args": told}
        yield {**slice_, "name": f"{each.kind}  {each.where}".rstrip(), **from_to(start, max(end, start))}
