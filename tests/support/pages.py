"""The fenced blocks and the commands on pages of the manual."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

PROGRAMS = ("shardwright", "opt-tool", "torchrun", "make", "python")
"""The first words of lines that are commands; other lines of a block are output."""

_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the language and the lines of each fenced block of a page."""
    block: list[str] | None = None
    language = ""
    for line in (ROOT / page).read_text().splitlines():
        if line.lstrip().startswith("```"):
            if block is not None:
                yield language, block
            language, block = line.strip().removeprefix("```"), [] if block is None else None
        elif block is not None:
            block.append(line)


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of the commands in the blocks without a language, up to a pipe."""
    text = "\n".join("\n".join(block) for language, block in blocks(page) if not language)
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        if words and words[0] in PROGRAMS:
            command = shlex.split(line, comments=True)
            command = command[command.index(words[0]) :]
            yield command[: command.index("|")] if "|" in command else command
