"""The IR files under tests/filecheck, split as lit and `opt-tool --split-input-file` do."""

import re
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.text import parse_module
from shardwright.passes.verification import first_fault
from shardwright.tools.universe import UNIVERSE

FILECHECK = Path(__file__).parents[1] / "filecheck"

_SEPARATOR = re.compile(r"^[ \t]*//[ \t]*-----[ \t]*$", re.MULTILINE)
_RUN = re.compile(r"^\s*//\s*RUN:\s?(.*)$")


def mlir_files() -> list[Path]:
    """Return every test file, in a fixed order."""
    return sorted(FILECHECK.rglob("*.mlir"))


def name_of(path: Path) -> str:
    """Return the path as a test id: relative to tests/filecheck."""
    return path.relative_to(FILECHECK).as_posix()


def chunks(text: str) -> list[str]:
    """Split a file at its `// -----` lines; blank lines in front keep the line numbers of the file."""
    pieces: list[str] = []
    start = 0
    for mark in [*_SEPARATOR.finditer(text), None]:
        end = mark.start() if mark else len(text)
        pieces.append("\n" * text.count("\n", 0, start) + text[start:end])
        start = mark.end() if mark else end
    return [piece for piece in pieces if piece.strip()]


def run_lines(text: str) -> list[str]:
    """Return the commands of the RUN lines; join a line that ends in a backslash with the next RUN line."""
    commands: list[str] = []
    open_command = ""
    for line in text.splitlines():
        if match := _RUN.match(line):
            open_command += match[1].rstrip()
            if open_command.endswith("\\"):
                open_command = open_command[:-1]
            else:
                commands.append(open_command)
                open_command = ""
    return [*commands, open_command] if open_command else commands


def context(*, allow_unregistered: bool = False) -> Context:
    """Return a context with the dialects of xDSL and of this package."""
    ctx = Context(allow_unregistered=allow_unregistered)
    for name, load in {**get_all_dialects(), **UNIVERSE.all_dialects}.items():
        ctx.register_dialect(name, load)
    return ctx


def parse(text: str, ctx: Context, name: str = "<text>") -> ModuleOp:
    """Parse and verify one chunk; errors refer to it as `name`."""
    module = parse_module(ctx, text, name)
    assert (fault := first_fault(module)) is None, f"{name}: {fault.message}"
    return module
