"""The difference of two plans: their figures, and the parameters that they spread differently."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from ...ir.units import bytes_text, seconds_text
from ...passes.analysis.parallelism import ParameterSpread
from ...passes.analysis.simulation.names import numbered_name
from ...passes.step.step_view import StepView
from ..plan_report import mesh_text
from .content import PageSection, PageTable, Text
from .layers import kinds_text, placements
from .planned import Planned


def differences_section(plan: Planned, other: Planned) -> PageSection:
    """Return the section that compares a plan with another one."""
    head = ("", plan.folder, other.folder, "difference")
    blocks: list[PageTable | Text] = [PageTable("Figures", head, list(_figures(plan, other)))]
    rows = list(_spreads(plan, other))
    if rows:
        title = "Parameters that are spread differently"
        blocks.append(PageTable(title, (plan.folder, other.folder, "parameters"), rows))
    else:
        blocks.append(Text("Both plans spread every parameter alike."))
    return PageSection("against", f"Against {other.folder}", blocks)


def _figures(plan: Planned, other: Planned) -> Iterator[tuple[str, str, str, str]]:
    here, there = plan.report, other.report
    yield "plan", here["chosen"] or "-", there["chosen"] or "-", ""
    yield "cluster", here["cluster"], there["cluster"], ""
    yield "mesh", mesh_text(here), mesh_text(there), ""
    for name, key in (
        ("predicted step", "predicted_step_s"),
        ("of it compute", "predicted_compute_s"),
        ("of it waiting for communication", "predicted_exposed_communication_s"),
    ):
        yield _figure(name, here[key], there[key], seconds_text)
    yield _figure("peak memory of a rank", here["peak"]["bytes"], there["peak"]["bytes"], bytes_text)
    for role in dict.fromkeys([*here["peak"]["roles"], *there["peak"]["roles"]]):
        sizes = [each["peak"]["roles"].get(role, 0) for each in (here, there)]
        yield _figure(f"of it {role}", sizes[0], sizes[1], bytes_text)
    for kind in dict.fromkeys([*here["collective_bytes"], *there["collective_bytes"]]):
        sizes = [each["collective_bytes"].get(kind, 0.0) for each in (here, there)]
        yield _figure(f"{kind.replace('_', '-')} of a rank", sizes[0], sizes[1], bytes_text)


def _figure(name: str, here: float, there: float, text: Callable[[float], str]) -> tuple[str, str, str, str]:
    change = f"{there / here - 1:+.1%}" if there < 10 * here else f"{there / (here or 1):.3g} times"
    by = change if here else ("0" if not there else "only there")
    return name, text(here), text(there), by


def _spreads(plan: Planned, other: Planned) -> Iterator[tuple[str, str, str]]:
    """Yield the different spreads of parameters, each with its parameters; equal layers share a name."""
    texts = [{spread.name: _text(view, spread) for view, spread in each.spreads} for each in (plan, other)]
    groups: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name in dict.fromkeys([*texts[0], *texts[1]]):
        here, there = (each.get(name, "no such parameter") for each in texts)
        if here != there:
            groups[here, there][numbered_name(name)] += 1
    for (here, there), names in groups.items():
        listed = (f"{name} ({count})" if count > 1 else name for name, count in names.items())
        yield here, there, ", ".join(listed)


def _text(view: StepView, spread: ParameterSpread) -> str:
    stage = f"stage {view.stage}; " if view.stage is not None else ""
    return f"{stage}{placements(spread.home, view.mesh)}; {'; '.join(kinds_text(spread))}"
