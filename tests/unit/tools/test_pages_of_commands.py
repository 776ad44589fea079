"""Commands, blocks of Python and links on the pages of the manual."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent, indent

import pytest
from gpu_check.settings import parse as gpu_settings
from gpu_check.stages import STAGES
from pages import PAGES, PROGRAMS, ROOT, blocks, commands
from torch.distributed.run import get_args_parser

from shardwright.passes.pipeline import Pipeline
from shardwright.tools import opt_arguments
from shardwright.tools.cli_arguments import parse_arguments


def check_shardwright(words: list[str]) -> None:
    assert parse_arguments(words).command == words[0]


def check_opt_tool(words: list[str]) -> None:
    assert Pipeline.parse(opt_arguments.parse_arguments(words).pass_pipeline).passes


def check_torchrun(words: list[str]) -> None:
    options = get_args_parser().parse_args(words)
    if options.module:
        check_module(options.training_script, options.training_script_args)


def check_module(name: str, words: list[str]) -> None:
    """Check the arguments of a module that torchrun starts."""
    if name == "gpu_check":
        assert gpu_settings(words, STAGES).stages
    else:
        assert name == "shardwright.tools.cli"
        options = parse_arguments(words)
        assert (options.command, options.mesh) == ("profile", "node=2,gpu=8")


def check_make(words: list[str]) -> None:
    assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words[1:]:
        name, _, arguments = word.partition("=")
        assert name == "GPU_CHECK_ARGS"
        assert gpu_settings(arguments.split(), STAGES).stages


def check_script(words: list[str]) -> None:
    """Check that a script exists and that it, or the helper that parses the options of all, names each option."""
    text = (ROOT / words[0]).read_text() + (ROOT / "benchmarks/_report.py").read_text()
    for word in words[1:]:
        assert not word.startswith("--") or f'"{word}"' in text, word


CHECKS: Mapping[str, Callable[[list[str]], object]] = {
    "shardwright": check_shardwright,
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
    assert count["torchrun"] >= 8


@pytest.mark.parametrize("page", ["docs/recipes.md", "docs/coming-from.md", "docs/launching.md"])
def test_pages_of_commands_have_no_other_lines(page: str):
    """So that no command is left unchecked because its program is unknown."""
    lines = "\n".join("\n".join(block) for language, block in blocks(page) if not language).replace("\\\n", " ")
    first = {words[0] for line in lines.splitlines() if (words := shlex.split(line, comments=True))}
    assert first <= {*PROGRAMS, "cd", "sbatch", "kubectl"}


def test_an_unknown_option_is_noticed():
    with pytest.raises(AssertionError, match="--hugging"):
        check_script(["benchmarks/zoo.py", "--hugging"])


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_python_are_python(page: str):
    for language, block in blocks(page):
        # Excerpts of generated programs have `...` in the place of names.
        if language == "python" and page != "docs/programs.md":
            # Excerpts of a generator are valid in a function.
            text = indent(dedent("\n".join(block)), "    ")
            assert compile(f"def excerpt():\n{text}", page, "exec")


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
