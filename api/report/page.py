"""The page of a report: its sections as one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from ..plan_report import PlanReport
from .content import Chart, PageSection
from .differences import differences_section
from .layers import layers_section
from .planned import Planned, ReportError
from .sections import bound_section, candidates_section, cluster_section, plan_section
from .what_ifs import what_ifs_section

if TYPE_CHECKING:
    from markupsafe import Markup


def report_page(plan: Planned, other: Planned | None = None) -> str:
    """
    Return the HTML of the page about a plan.

    Args:
        other: another plan, which the page compares with this one.

    Raises:
        ReportError: the charts need a package that is not installed.
        NotThisStepError: the measured steps belong to another plan.
    """
    try:
        from .drawn import communication_section, memory_section, timeline_section
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "bokeh":
            raise
        message = 'a report needs the package bokeh, which is not installed: pip install "shardwright[report]"'
        raise ReportError(message) from error
    builders = (
        plan_section,
        cluster_section,
        layers_section,
        timeline_section,
        memory_section,
        communication_section,
        candidates_section,
        bound_section,
        what_ifs_section,
    )
    sections = [build(plan) for build in builders]
    if other is not None:
        sections.append(differences_section(plan, other))
    return _rendered(plan.report, sections)


def _rendered(report: PlanReport, sections: Sequence[PageSection]) -> str:
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment

    charts = [block for section in sections for block in section.blocks if isinstance(block, Chart)]
    script, drawn = components([each.plot for each in charts])
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = _with_code
    text = files("shardwright.api.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        title=f"{report['name']} on {report['cluster']}",
        versions=report["versions"],
        sections=sections,
        # Only the core of the library: widgets, tables and formulas would triple the size of the page.
        library=Resources(mode="inline", components=["bokeh"]).render_js(),
        script=script,
        drawn={id(chart): div for chart, div in zip(charts, drawn, strict=True)},
        id=id,
    )


def _with_code(text: str) -> Markup:
    """Return a text as HTML, with its parts between backticks as code."""
    from markupsafe import Markup, escape

    parts = (escape(part) for part in text.split("`"))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts)
    )
