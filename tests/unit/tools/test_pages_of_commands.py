"""Commands, scripts and links on the pages about recipes, other libraries and launching."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from shardwright.tools.cli_arguments import parse_arguments

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ["recipes.md", "coming-from.md", "launching.md"]


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the language and the lines of each fenced block of a page."""
    block: list[str] | None = None
    language = ""
    for line in (DOCS / page).read_text().splitlines():
        if line.lstrip().startswith("```"):
            if block is not None:
                yield language, block
            language, block = line.strip().removeprefix("```"), [] if block is None else None
        elif block is not None:
            block.append(line)


def commands(page: str) -> list[list[str]]:
    """Return the words of the commands in the blocks without a language."""
    text = "\n".join(line for language, block in blocks(page) if not language for line in block)
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_python_are_python(page: str):
    for language, block in blocks(page):
        if language == "python":
            assert compile("\n".join(block), page, "exec")


def test_options_of_torchrun_and_of_the_command_line_exist():
    found = [words for page in PAGES for words in commands(page)]
    torchrun = [get_args_parser().parse_args(words[1:]) for words in found if words[0] == "torchrun"]
    assert len(torchrun) >= 6
    profiles = [parse_arguments(each.training_script_args) for each in torchrun if each.module]
    assert [each.mesh for each in profiles] == ["node=2,gpu=8"]
    ours = [parse_arguments(words[1:]).command for words in found if words[0] == "shardwright"]
    assert ours == ["plan", "explain"]
    # Every other command is one of these, so that none is left unchecked by mistake.
    assert {words[0] for words in found} - {"torchrun", "shardwright"} <= {"python", "cd", "sbatch", "kubectl"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str):
    text = re.sub(r"^ *```.*?^ *```$", "", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(\s*([^)\s]+)\s*\)", text):
        name, _, heading = target.partition("#")
        path = DOCS / name if name else DOCS / page
        assert path.exists(), target
        if heading:
            slugs = [re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in headings(path)]
            assert heading in slugs, target


def headings(path: Path) -> list[str]:
    """Return the headings of a page."""
    return re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
