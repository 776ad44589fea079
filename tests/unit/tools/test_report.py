"""`shardwright report`: the sections of the page, its data, and its errors; and the page in a browser."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from predicted_steps import as_predicted
from road import road

from shardwright.api.plan_report import report
from shardwright.api.report.content import Tree
from shardwright.api.report.drawn import names_of, places_of
from shardwright.api.report.layers import layers_section
from shardwright.api.report.page import report_page
from shardwright.api.report.planned import Planned
from shardwright.ir.units import seconds_text
from shardwright.tools.cli import main

SECTIONS = ["plan", "cluster", "layers", "timeline", "memory", "communication", "candidates", "bound", "what-if"]
MOST_BYTES = 5 * 2**20
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    assert main(["plan", "mlp-tiny", "--cluster", "local-4", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def page(plan: Path) -> str:
    output = plan.parent / "page.html"
    assert main(["report", str(plan), "-o", str(output), "--against", str(plan)]) == 0
    return output.read_text()


@pytest.fixture(scope="module")
def road_plan() -> Planned:
    """Return a plan of two stages, with uneven shares and idle links, and with measurements."""
    return Planned(report(road(), {}, "</script><b>road</b>", None), road(), measured=as_predicted(road()))


@pytest.fixture(scope="module")
def road_page(road_plan: Planned) -> str:
    return report_page(road_plan)


class Elements(HTMLParser):
    """The elements of a page, and its text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.text = re.sub(r"\s+", " ", " ".join(self.shown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.shown.append(data)


@pytest.mark.parametrize("name", ["page", "road_page"])
def test_the_page_is_well_formed_small_and_loads_nothing(name: str, request: pytest.FixtureRequest):
    text: str = request.getfixturevalue(name)
    assert len(text.encode()) < MOST_BYTES
    elements = Elements(text)
    assert not elements.open
    for tag, attributes in elements.tags:
        assert "src" not in attributes
        href = attributes.get("href") or "#"
        assert href.startswith(("#", "data:")), f"<{tag}> loads {href}"
    assert not re.search(r"@import|url\(", text.partition("</style>")[0])
    targets = {attributes.get("id") for _, attributes in elements.tags}
    links = {(attributes.get("href") or "")[1:] for tag, attributes in elements.tags if tag == "a"}
    assert links <= targets


def test_every_section_is_there_in_order(page: str, road_page: str):
    for text, sections in ((page, [*SECTIONS, "against"]), (road_page, SECTIONS)):
        assert [attributes["id"] for tag, attributes in Elements(text).tags if tag == "section"] == sections


def test_the_page_has_the_figures_of_the_plan(plan: Path, page: str):
    shown, contents = Elements(page).text, json.loads((plan / "plan.json").read_text())
    for key in ("predicted_step_s", "predicted_compute_s", "bound_s"):
        assert seconds_text(contents[key]) in shown
    for name in (contents["chosen"], *(each["name"] for each in contents["candidates"]), *contents["legend"]):
        assert re.sub(r"\s+", " ", name) in shown
    assert "data parallel" in shown
    assert "link.gpu.bandwidth x 2" in shown
    assert "Both plans spread every parameter alike." in shown


def test_stages_and_measured_steps_are_drawn(road_page: str, road_plan: Planned):
    shown = Elements(road_page).text
    for part in ("stage 1", "The measured step takes", "Predicted and measured busy seconds", "so there are no candid"):
        assert part in shown
    # The names of rows of the timeline are in the data of the charts.
    assert re.search(r"measured, rank \d: compute", road_page)
    assert "rank 0 (stage 0, " in road_page
    assert shown.count("</script><b>road</b>") >= 2


def test_many_ranks_share_rows_of_the_matrix():
    assert names_of(places_of(4)) == ["0", "1", "2", "3"]
    places = places_of(130)
    assert len(names_of(places)) == 1 + max(places) <= 64
    assert names_of(places)[:2] == ["0-2", "3-5"]
    assert names_of(places)[-1] == "129"


def test_equal_modules_are_folded_and_seconds_add_up(road_plan: Planned):
    (tree,) = (block for block in layers_section(road_plan).blocks if isinstance(block, Tree))
    rows = [row for node in nodes(tree.nodes) for row in node.rows]
    assert all(len(row) == len(tree.head) for row in rows)
    assert len(rows) <= len(road_plan.spreads)
    assert any("Shard(" in cell for row in rows for cell in row)


def nodes(given: Any) -> Iterator[Any]:
    for node in given:
        yield node
        yield from nodes(node.children)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["report", *map(str, arguments)]) == 1
    return capsys.readouterr().err


def test_bad_input_is_one_message(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "page.html"
    assert "is not a plan: No such file" in refused(capsys, tmp_path, "-o", output)
    assert "is a folder, expected a file" in refused(capsys, plan, "-o", tmp_path)
    assert "has no measured steps: No such file" in refused(capsys, plan, "-o", output, "--measured", tmp_path / "no")
    (tmp_path / "other.json").write_text(as_predicted(road()).text())
    message = refused(capsys, plan, "-o", output, "--measured", tmp_path / "other.json")
    assert "other.json belongs to another step" in message
    assert "--overlap" in message
    changed = tmp_path / "changed"
    shutil.copytree(plan, changed)
    contents = json.loads((changed / "plan.json").read_text())
    (changed / "plan.json").write_text(json.dumps({**contents, "chosen": "none"}))
    assert "its plan 'none' is not among its candidates" in refused(capsys, changed, "-o", output)
    (changed / "plan.json").write_text(json.dumps({**contents, "stages": ["two"]}))
    assert "stages" in refused(capsys, changed, "-o", output)
    (changed / "plan.json").write_text(json.dumps(contents))
    shutil.copy(changed / "global.mlir", changed / "step.mlir")
    assert "is not a planned step: " in refused(capsys, changed, "-o", output)
    assert not output.exists()


def test_a_missing_library_names_the_extra(plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path):
    monkeypatch.delitem(sys.modules, "shardwright.api.report.drawn", raising=False)
    monkeypatch.delitem(sys.modules, "shardwright.api.report.charts", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "bokeh"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    message = refused(capsys, plan, "-o", tmp_path / "page.html")
    assert 'a report needs the package bokeh, which is not installed: pip install "shardwright[report]"' in message


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_draws_the_page_without_errors(road_page: str, tmp_path: Path):
    playwright = pytest.importorskip("playwright.sync_api")
    (tmp_path / "page.html").write_text(road_page)
    problems: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 800, "height": 600})
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda sent: problems.append(sent.url) if not sent.url.startswith(("file:", "data:")) else 0)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents.every(d => d.is_idle)")
        drawn = page.evaluate("Bokeh.documents.flatMap(d => d.roots()).length")
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.screenshot(path=str(tmp_path / "page.png"))
        browser.close()
    assert not problems
    assert drawn >= 4
    assert wide <= 800
    assert (tmp_path / "page.png").stat().st_size > 10_000
