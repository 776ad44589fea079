"""Commands, blocks of Python and links on the pages of the manual."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from pages import PAGES, PROGRAMS, ROOT, blocks, commands
from torch.distributed.run import get_args_parser

from shardwright.passes.pipeline import Pipeline
from shardwright.tools import opt_arguments
from shardwright.tools.cli_arguments import parse_arguments


def check_opt_tool(words: list[str]) -> None:
    assert Pipeline.parse(opt_arguments.parse_arguments(words).pass_pipeline).passes


def check_torchrun(words: list[str]) -> None:
    options = get_args_parser().parse_args(words)
    if options.module and options.training_script == "shardwright.tools.profile":
        assert parse_arguments(options.training_script_args)


def check_make(words: list[str]) -> None:
    assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def check_script(words: list[str]) -> None:
    """Check that a script exists and that it, or the helper that parses the options of all, names each option."""
    text = (ROOT / words[0]).read_text() + (ROOT / "benchmarks/_report.py").read_text()
    for word in words[1:]:
        assert not word.startswith("--") or f'"{word}"' in text, word


CHECKS: Mapping[str, Callable[[list[str]], object]] = {
    "shardwright": parse_arguments,
    "opt-tool": check_opt_tool,
    "torchrun": check_torchrun,
    "make": check_make,
    "python": check_script,
}


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))])
def test_commands_and_their_options_exist(page: str):
    for words in commands(page):
        CHECKS[words[0]](words[1:])


def test_commands_of_every_program_are_found():
    count = Counter(words[0] for page in PAGES for words in commands(page))
    assert set(count) == set(PROGRAMS)
    assert count["shardwright"] > 40


def test_an_unknown_option_is_noticed():
    with pytest.raises(AssertionError, match="--hugging"):
        check_script(["benchmarks/zoo.py", "--hugging"])


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_python_are_python(page: str):
    for language, block in blocks(page):
        # Excerpts of generated programs have `...` in the place of names.
        if language == "python" and page != "docs/programs.md":
            text = dedent("\n".join(block))
            assert compile(text.replace("yield from ", ""), page, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str):
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(\s*([^)\s]+)\s*\)", text):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if heading and path.suffix == ".md":
            assert heading in slugs(path), target


def slugs(path: Path) -> list[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", line).lower().replace(" ", "-") for line in headings]
