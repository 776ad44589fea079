"""The IR files under tests/filecheck, taken apart as lit and `opt-tool --split-input-file` do it."""

import re
from pathlib import Path

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
    """Split a file at its `// -----` lines, padded so that line numbers stay those of the file."""
    pieces: list[str] = []
    start = 0
    for mark in [*_SEPARATOR.finditer(text), None]:
        end = mark.start() if mark else len(text)
        pieces.append("\n" * text.count("\n", 0, start) + text[start:end])
        start = mark.end() if mark else end
    return [piece for piece in pieces if piece.strip()]


def run_lines(text: str) -> list[str]:
    """Return the commands of the RUN lines, a trailing backslash joined with the RUN line that follows."""
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
