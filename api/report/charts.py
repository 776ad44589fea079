"""The charts of a report: the timeline, the memory of ranks, and the bytes between ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    FactorRange,
    HoverTool,
    Legend,
    LegendItem,
    LogColorMapper,
    Plot,
    PrintfTickFormatter,
)
from bokeh.palettes import Cividis256
from bokeh.plotting import figure
from numpy.typing import NDArray
from xdsl.ir import Operation

from ...ir.measured_steps import MeasuredRank
from ...ir.units import bytes_text, seconds_text
from ...passes.analysis.simulation.bars import TimelineBar, bars_of, joined
from ...passes.analysis.simulation.held import HeldBytes
from ...passes.analysis.simulation.results import COMPUTE, RankClass
from ...passes.analysis.simulation.trace import class_name
from ...passes.step.blocks import Blocks, layer_of
from .content import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from .planned import Planned

COLOURS = {
    "forward": BLUE, "backward": ORANGE, "update": GREEN, "all": BLUE, "all_reduce": VERMILION,
    "all_gather": PURPLE, "reduce_scatter": SKY, "all_to_all": YELLOW, "transfer": GREY,
}  # fmt: skip

_ROLES = {
    "parameters": BLUE, "optimizer states": GREEN, "batch": GREY, "gradients": VERMILION,
    "gathered": PURPLE, "activations": ORANGE, "buffers": SKY,
}  # fmt: skip

_MOST_BARS = 600
"""The number of bars of a stream above which equal neighbours are joined."""

_MOST_POINTS = 1000
"""The number of points of a memory curve above which only the highest of neighbours are kept."""

MOST_STAGES = 16


def timeline(plan: Planned, measured: Sequence[MeasuredRank] = ()) -> Plot:
    """Return the timeline of the class of each stage that computes longest, and of measured ranks of the stages."""
    rows: dict[str, list[TimelineBar]] = {}
    for ranks in plan.busiest[:MOST_STAGES]:
        for stream, bars in _streams(plan, ranks).items():
            rows[f"{class_name(ranks)}: {stream}"] = bars
    for rank in measured[:MOST_STAGES]:
        rows |= {f"measured, rank {rank.rank}: {stream}": bars for stream, bars in _measured(rank).items()}
    unit, scale = ("us", 1e6) if plan.simulation.seconds < 1e-3 else ("ms", 1e3)
    hover = [("", "@label"), ("kind", "@kind"), ("ops", "@count"), ("from", "@begin"), ("takes", "@takes")]
    chart = _figure(
        max(220, 130 + 30 * len(rows)),
        [*hover, ("sends", "@sent"), ("compute waits", "@waited")],
        y_range=FactorRange(factors=list(reversed(rows)), range_padding=0.3, range_padding_units="absolute"),
        x_axis_label=f"time in the step ({unit})",
    )
    items: list[LegendItem] = []
    for kind in dict.fromkeys(bar.kind for bars in rows.values() for bar in bars):
        pairs = [(row, bar) for row, bars in rows.items() for bar in bars if bar.kind == kind]
        source = ColumnDataSource(data=_columns(pairs, scale))
        colour = COLOURS.get(kind, "#000000")
        glyph = chart.hbar(
            y="row", left="left", right="right", height=0.8, color=colour, line_color=None, source=source
        )
        items.append(LegendItem(label=kind.replace("_", "-"), renderers=[glyph]))
    _legend(chart, items)
    return chart


def _streams(plan: Planned, ranks: RankClass) -> Mapping[str, list[TimelineBar]]:
    """Return the bars of the streams of a class by module, or by block or phase if there would be too many."""
    labels: Sequence[Callable[[Operation], str]] = (layer_of, lambda op: Blocks().of(layer_of(op)), lambda _: "")
    gap, found = 0.0, dict[str, list[TimelineBar]]()
    for label in labels:
        found = dict(bars_of(plan.simulation, ranks, label, gap))
        if len(found[COMPUTE]) <= _MOST_BARS:
            break
        gap = plan.simulation.seconds / _MOST_BARS
    return {stream: _few(bars, plan.simulation.seconds / _MOST_BARS) for stream, bars in found.items()}


def _few(bars: list[TimelineBar], gap: float) -> list[TimelineBar]:
    if len(bars) <= _MOST_BARS:
        return bars
    return list(
        joined((TimelineBar(each.kind, each.start, each.end, "", 1, each.sent, each.waited) for each in bars), gap)
    )


def _measured(rank: MeasuredRank) -> Mapping[str, list[TimelineBar]]:
    spans = sorted((start, end, phase) for phase, given in rank.computed.items() for start, end in given)
    found = {COMPUTE: [TimelineBar(phase, start - rank.start, end - rank.start) for start, end, phase in spans]}
    for each in rank.traffic:
        start, end = each.start - rank.start, (each.end or each.start) - rank.start
        found.setdefault(each.channel, []).append(
            TimelineBar(each.kind, start, end, each.where, sent=float(each.bytes))
        )
    return {stream: _few(bars, rank.seconds / _MOST_BARS) for stream, bars in found.items()}


def _columns(pairs: Sequence[tuple[str, TimelineBar]], scale: float) -> dict[str, Any]:
    bars = [bar for _, bar in pairs]
    return {
        "row": [row for row, _ in pairs],
        "left": [round(bar.start * scale, 4) for bar in bars],
        "right": [round(bar.end * scale, 4) for bar in bars],
        "label": [bar.label or "several layers" for bar in bars],
        "kind": [bar.kind for bar in bars],
        "count": [bar.count for bar in bars],
        "begin": [seconds_text(bar.start) for bar in bars],
        "takes": [seconds_text(bar.end - bar.start) for bar in bars],
        "sent": [bytes_text(bar.sent) if bar.sent else "nothing" for bar in bars],
        "waited": [seconds_text(bar.waited) if bar.waited else "not for this" for bar in bars],
    }


def memory_over_time(plan: Planned, held: HeldBytes, ranks: RankClass) -> Plot:
    """Return the memory that a rank of a class holds over a step, by role."""
    times, roles = held.by_role(ranks)
    kept = _highest(np.array(list(roles.values())).sum(axis=0))
    unit, scale = ("us", 1e6) if plan.simulation.seconds < 1e-3 else ("ms", 1e3)
    # A step curve: memory changes only when an op begins.
    x = np.repeat(np.append(np.array(times)[kept], plan.simulation.seconds) * scale, 2)[1:-1]
    sizes = {role.value: np.repeat(np.array(bytes_held)[kept], 2) for role, bytes_held in roles.items()}
    names = list(sizes)
    sizes["total"] = np.sum(list(sizes.values()), axis=0)
    size_unit, size = _size_unit(float(sizes["total"].max()))
    data: dict[str, Any] = {"x": x.round(4).tolist()}
    for name, held_bytes in sizes.items():
        data[name] = (held_bytes / size).round(5).tolist()
        data[f"{name} text"] = [bytes_text(each) for each in held_bytes.tolist()]
    chart = _figure(
        320,
        [],
        x_range=(0, plan.simulation.seconds * scale),
        x_axis_label=f"time in the step ({unit})",
        y_axis_label=f"held ({size_unit})",
    )
    source = ColumnDataSource(data)
    areas = chart.varea_stack(names, x="x", color=[_ROLES[name] for name in names], source=source)
    line = chart.line("x", "total", color="#000000", line_width=1, source=source)
    rows = [(name, f"@{{{name} text}}") for name in ("total", *reversed(names))]
    chart.add_tools(HoverTool(renderers=[line], mode="vline", tooltips=rows))
    _legend(chart, [LegendItem(label=name, renderers=[area]) for name, area in zip(names, areas, strict=True)])
    return chart


def _highest(total: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indices of the changes of a curve; if there are many, only the highest point of each interval."""
    kept = np.flatnonzero(np.diff(total, prepend=-1))
    if len(kept) <= _MOST_POINTS:
        return kept
    return np.array([part[np.argmax(total[part])] for part in np.array_split(kept, _MOST_POINTS)])


def peaks_by_rank(peaks: Sequence[float]) -> Plot:
    """Return the peak memory of each rank as bars."""
    unit, size = _size_unit(max(peaks))
    chart = _figure(
        220,
        [("rank", "@rank"), ("peak", "@text")],
        x_axis_label="rank",
        y_axis_label=f"peak ({unit})",
        x_range=(-1, len(peaks)),
    )
    texts = [bytes_text(peak) for peak in peaks]
    source = ColumnDataSource({"rank": list(range(len(peaks))), "peak": [peak / size for peak in peaks], "text": texts})
    chart.vbar(x="rank", top="peak", width=0.8, color=BLUE, source=source)
    chart.xaxis[0].ticker.min_interval = 1
    return chart


def matrix(sent: NDArray[np.float64], names: Sequence[str]) -> Plot:
    """Return the bytes from each place (rows) to each other (columns), coloured by their logarithm."""
    senders, receivers = np.nonzero(sent)
    sizes = sent[senders, receivers]
    low, high = (float(sizes.min()), float(sizes.max())) if len(sizes) else (1.0, 1.0)
    unit, size = _size_unit(high)
    low, high = low / size, high / size
    mapper = LogColorMapper(palette=Cividis256[::-1], low=low if low < high else low / 2, high=high)
    tips = [("from", "@sender"), ("to", "@receiver"), ("bytes", "@text")]
    chart = _figure(
        560,
        tips,
        x_range=FactorRange(factors=list(names)),
        y_range=FactorRange(factors=list(reversed(names))),
        x_axis_label="to",
        y_axis_label="from",
    )
    source = ColumnDataSource(
        {
            "sender": [names[int(at)] for at in senders],
            "receiver": [names[int(at)] for at in receivers],
            "sent": (sizes / size).tolist(),
            "text": [bytes_text(size) for size in sizes],
        }
    )
    fill = {"field": "sent", "transform": mapper}
    chart.rect(x="receiver", y="sender", width=1, height=1, fill_color=fill, line_color=None, source=source)
    chart.xaxis.major_label_orientation = "vertical"
    chart.axis.major_label_text_font_size = "8px" if len(names) > 40 else "11px"
    chart.grid.grid_line_color = None
    chart.add_layout(ColorBar(color_mapper=mapper, formatter=PrintfTickFormatter(format="%.3g"), title=unit), "right")
    return chart


def _figure(height: int, tips: Sequence[tuple[str, str]], **options: Any) -> Any:
    chart = figure(
        height=height,
        sizing_mode="stretch_width",
        tools="xpan,xbox_zoom,xwheel_zoom,reset,save",
        active_drag=None,
        active_scroll=None,
        toolbar_location="right",
        **options,
    )
    if tips:
        chart.add_tools(HoverTool(tooltips=list(tips)))
    chart.toolbar.logo = None
    chart.axis.axis_label_text_font_style = "normal"
    chart.outline_line_color = None
    return chart


def _legend(chart: Any, items: Sequence[LegendItem]) -> None:
    """Put a legend above a chart; a click on an entry hides it."""
    legend = Legend(items=list(items), orientation="horizontal", click_policy="hide", border_line_color=None, ncols=8)
    chart.add_layout(legend, "above")


def _size_unit(largest: float) -> tuple[str, float]:
    """Return a unit for the sizes on an axis, and the bytes of one unit."""
    units = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}
    return next(((unit, size) for unit, size in units.items() if largest >= size), ("bytes", 1.0))
