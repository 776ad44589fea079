"""IR files: reading as text or as modules, with located errors; splitting at `// -----`; and atomic writing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.universe import XDSL_UNIVERSE
from xdsl.utils.lexer import Input

from ..ir.text_file import read_file, write_atomically
from ..passes.reading import InvalidModuleError, ReadModule, TextError, read_module
from .diagnostics import Diagnostic, DiagnosticError
from .explain import invalid_input, parse_diagnostic
from .universe import UNIVERSE

SEPARATOR = "// -----"
_SEPARATOR_LINE = re.compile(r"^[ \t]*// -----[ \t]*\r?$", re.MULTILINE)
_BLANK = re.compile(r"(?:\s|//[^\n]*)*")


def read_source(path: str) -> Input[str]:
    """Return the text of the file at `path`, or of standard input for `-`; DiagnosticError if it cannot be read."""
    name = "<stdin>" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else read_file(path)
    except (OSError, ValueError) as error:
        hint = "give the path of an IR file, or - for standard input"
        reason = getattr(error, "strerror", None) or str(error)
        raise DiagnosticError(Diagnostic(f"cannot read: {reason}", name, hint=hint)) from error
    try:
        return Input(data.decode(), name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = len(data[data.rfind(b"\n", 0, error.start) + 1 : error.start].decode()) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        hint = "IR is text in UTF-8; is this another kind of file?"
        raise DiagnosticError(Diagnostic(message, name, line, column, hint=hint)) from error


def split_source(source: Input[str]) -> list[Input[str]]:
    """Return the parts between `// -----` lines, padded so that their line numbers are the file's."""
    text, start = source.content, 0
    pieces: list[Input[str]] = []
    for mark in [*_SEPARATOR_LINE.finditer(text), None]:
        end = mark.start() if mark else len(text)
        pieces.append(Input("\n" * text.count("\n", 0, start) + text[start:end], source.name))
        start = mark.end() if mark else end
    return pieces


def is_blank(source: Input[str]) -> bool:
    """Return whether a text has only blanks and comments."""
    return _BLANK.fullmatch(source.content) is not None


def write_output(text: str, path: str) -> None:
    """
    Write `text` to the file at `path`, or to standard output for `-`.

    The file is written atomically: if writing fails, the old file stays and a DiagnosticError is raised.
    """
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_atomically(Path(path), text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "give -o the path of a file in an existing, writable folder"
        raise DiagnosticError(Diagnostic(f"cannot write: {reason}", path, hint=hint)) from error


def full_context(allow_unregistered: bool = False) -> Context:
    """Return a context with xDSL's dialects and ours."""
    ctx = Context(allow_unregistered=allow_unregistered)
    for name, load in {**XDSL_UNIVERSE.all_dialects, **UNIVERSE.all_dialects}.items():
        ctx.register_dialect(name, load)
    return ctx


def read(ctx: Context, source: Input[str]) -> ReadModule:
    """Return the verified module in a text, with the spans of its ops; a DiagnosticError describes an invalid text."""
    try:
        return read_module(ctx, source)
    except TextError as error:
        raise DiagnosticError(parse_diagnostic(error.error, source, error.parser, ctx)) from error.error
    except InvalidModuleError as error:
        raise DiagnosticError(invalid_input(error.fault, source, error.spans)) from error


def load_module(path: str) -> ModuleOp:
    """Return the verified module in a file; a DiagnosticError describes an invalid file."""
    return read(full_context(), read_source(path)).module
