"""The manual as a site, and the links of pages outside it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OUTSIDE = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")]


def build(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make site` does."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", str(pages), str(site)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module", autouse=True)
def _sphinx() -> None:
    pytest.importorskip("furo", reason="needs shardwright[docs]")


def test_the_site_has_every_page_in_its_navigation_and_no_warning(tmp_path: Path):
    done = build(ROOT / "docs", tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    navigation = (tmp_path / "site" / "index.html").read_text().partition('class="sidebar-tree"')[2]
    links = set(re.findall(r'href="([\w-]+)\.html"', navigation.partition("</aside>")[0]))
    assert links == {page.stem for page in ROOT.glob("docs/*.md")} - {"index"}
    assert '"shardwright"' in (tmp_path / "site" / "searchindex.js").read_text().lower()
    passes = (tmp_path / "site" / "passes.html").read_text()
    assert '<span class="nv">%' in passes, "MLIR is not highlighted"


def test_a_page_outside_the_index_and_a_broken_link_are_errors(tmp_path: Path):
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path)
    (tmp_path / "index.md").write_text("# Index\n\n## Pages\n\n[a](a.md) [file](../tests.py)\n")
    (tmp_path / "a.md").write_text("# A\n\n[a heading](#none) [another](b.md#other)\n")
    (tmp_path / "b.md").write_text("# B\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    found = re.findall(r"(\w+)\.md:?\d*: WARNING: .*\[(.+)\]", done.stderr)
    expected = [("a", "myst.xref_missing"), ("a", "myst.xref_missing"), ("b", "toc.not_included")]
    assert sorted(found) == [*expected, ("index", "download.not_readable")]


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_outside_the_site_lead_to_files(page: Path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
