"""The report as JSON, Markdown and HTML, with equal contents."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from .results import Figure, Row, StageResult, Verdict, exit_status

JSON_NAME, MARKDOWN_NAME, HTML_NAME = "report.json", "report.md", "report.html"
_TITLE = "Check on GPUs"

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; font-size: 13px }
th, td { border: 1px solid #d0d7de; padding: .25rem .55rem; text-align: left; vertical-align: top }
th { background: #f3f5f7 } td.number { text-align: right; font-variant-numeric: tabular-nums }
.passed { color: #116329 } .failed { color: #b3261e; font-weight: 600 } .skipped { color: #6e7781 }
pre { background: #f6f8fa; padding: .6rem; overflow-x: auto; white-space: pre-wrap; margin: 0 }
"""


def write(folder: Path, results: Sequence[StageResult], *, complete: bool) -> None:
    """Write the three files into `folder`; `complete` says whether all stages have run."""
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "complete": complete,
        "exit_status": exit_status(results),
        "stages": list(map(asdict, results)),
    }
    (folder / JSON_NAME).write_text(json.dumps(report, indent=2) + "\n")
    (folder / MARKDOWN_NAME).write_text(markdown(results, complete=complete))
    (folder / HTML_NAME).write_text(page(results, complete=complete))


def read_status(folder: Path) -> int:
    """Return the exit status in the report, or 1 if the report is missing or incomplete."""
    try:
        report: Mapping[str, Any] = json.loads((folder / JSON_NAME).read_text())
    except (OSError, ValueError):
        return 1
    return int(report["exit_status"]) if report["complete"] else 1


def headline(results: Sequence[StageResult], *, complete: bool) -> str:
    """Return a summary of the results in one line."""
    failed = [result.name for result in results if result.verdict == "failed"]
    seconds = sum(result.seconds for result in results)
    verdict = f"FAILED: {', '.join(failed)}" if failed else "passed" if complete else "not complete"
    return f"{verdict} ({len(results)} stages in {seconds / 60:.1f} minutes)"


def figure_text(figure: Figure) -> str:
    """Format a figure with at most four digits."""
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows' figures, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.figures))


def markdown(results: Sequence[StageResult], *, complete: bool) -> str:
    lines = [f"# {_TITLE}: {headline(results, complete=complete)}", "", "| stage | verdict | seconds | cases |"]
    lines.append("|---|---|---|---|")
    lines += [f"| {r.name}: {r.title} | {r.verdict} | {r.seconds:.0f} | {_cases(r)} |" for r in results]
    for result in results:
        lines += ["", f"## {result.title}", "", f"`{result.name}`: **{result.verdict}** in {result.seconds:.0f} s"]
        if result.reason:
            lines += ["", "```", result.reason, "```"]
        lines += ["", *_markdown_rows(result.rows)] if result.rows else []
    return "\n".join(lines) + "\n"


def _cases(result: StageResult) -> str:
    counts = [(result.count(verdict), verdict) for verdict in ("passed", "failed", "measured", "skipped")]
    return ", ".join(f"{count} {verdict}" for count, verdict in counts if count) or result.reason.partition("\n")[0]


def _markdown_rows(rows: Sequence[Row]) -> Iterator[str]:
    names = columns(rows)
    yield f"| case | verdict | {' | '.join([*names, 'note'])} |"
    yield "|---" * (len(names) + 3) + "|"
    for row in rows:
        figures = [figure_text(row.figures[name]) if name in row.figures else "" for name in names]
        cells = (row.case, row.verdict, *figures, row.note.partition("\n")[0])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    for row in (row for row in rows if "\n" in row.note):
        yield from ("", f"`{row.case}`:", "", "```", row.note, "```")


def page(results: Sequence[StageResult], *, complete: bool) -> str:
    title = html.escape(f"{_TITLE}: {headline(results, complete=complete)}")
    rows = (
        [
            f'<td><a href="#{result.name}">{result.name}</a>: {html.escape(result.title)}</td>',
            *map(_td, (result.verdict, round(result.seconds), _cases(result))),
        ]
        for result in results
    )
    parts = [f"<h1>{title}</h1>", _table(("stage", "verdict", "seconds", "cases"), rows), *map(_section, results)]
    start = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    return f"{start}<style>{_STYLE}</style><body>\n" + "\n".join(parts) + "\n</body></html>\n"


def _section(result: StageResult) -> str:
    head = f'<h2 id="{result.name}">{html.escape(result.title)}</h2>'
    reason = f"<pre>{html.escape(result.reason)}</pre>" if result.reason else ""
    names = columns(result.rows)
    rows = (
        [_td(row.case), _td(row.verdict), *(_td(row.figures.get(name, "")) for name in names), _td(row.note)]
        for row in result.rows
    )
    return head + reason + (_table(("case", "verdict", *names, "note"), rows) if result.rows else "")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table from its titles and the cells of its rows, which are HTML."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "</tr><tr>".join(map("".join, rows))
    return f"<table><tr>{head}</tr><tr>{body}</tr></table>"


def _td(figure: Figure) -> str:
    """Return the cell of a verdict, a number, or a text of one or several lines."""
    kind = "number" if not isinstance(figure, str) else figure if figure in get_args(Verdict) else ""
    text = html.escape(figure_text(figure))
    return f'<td class="{kind}">' + (f"<pre>{text}</pre>" if "\n" in text else text) + "</td>"
