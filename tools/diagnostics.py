"""Diagnostics: messages about one place in a file, with its source line and a hint."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from xdsl.utils.lexer import Input

from ..ir.plain import did_you_mean

MOST_COLUMNS = 160
"""The maximum width of a shown source line; longer lines are cut around the place of the message."""


MOST_CHARACTERS = 2000
"""The maximum length of a message; longer messages, which quote a long name or attribute, are cut in their middle."""

MOST_NOTES = 10


@dataclass(frozen=True)
class Diagnostic:
    """
    An error as `file:line:col: error: message`, the source line with a caret under it, notes and a hint.

    `line` and `col` count from 1; 0 stands for the whole file, or for the command line if `file` is the tool's name.
    `width` is the number of underlined columns.
    """

    message: str
    file: str
    line: int = 0
    col: int = 0
    source: str = ""
    width: int = 1
    notes: tuple[str, ...] = ()
    hint: str = ""

    @property
    def place(self) -> str:
        """`file:line:col`, or only the file if the line is unknown."""
        return f"{self.file}:{self.line}:{self.col}" if self.line else self.file

    def __str__(self) -> str:
        lines = [f"{self.place}: error: {_printable(_cut(self.message))}", *self._excerpt()]
        lines += [f"note: {_printable(_cut(note))}" for note in self.notes[:MOST_NOTES]]
        lines += [f"hint: {_printable(self.hint)}"] if self.hint else []
        return "\n".join(lines)

    def _excerpt(self) -> Iterable[str]:
        if not self.source.strip():
            return
        first = max(0, self.col - 1 - MOST_COLUMNS // 2) if len(self.source) > MOST_COLUMNS else 0
        shown = self.source[first : first + MOST_COLUMNS]
        column = self.col - 1 - first
        yield "  " + "".join(char if char.isprintable() or char == "\t" else "?" for char in shown)
        # Tabs stay tabs, so that the caret is under its character for any tab width.
        yield (
            "  "
            + "".join("\t" if char == "\t" else " " for char in shown[:column].ljust(column))
            + ("^" * max(1, min(self.width, len(shown) - column)))
        )


@dataclass
class DiagnosticError(Exception):
    """An exception that ends the current command with one diagnostic."""

    diagnostic: Diagnostic

    def __str__(self) -> str:
        return str(self.diagnostic)


class ToolParser(argparse.ArgumentParser):
    """A command-line parser whose errors are diagnostics."""

    def error(self, message: str) -> NoReturn:
        """Raise the error of an invalid command line."""
        if (match := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)) is not None:
            message += did_you_mean(match[1], re.findall(r"[\w-]+", match[2]))
        raise DiagnosticError(Diagnostic(message, self.prog.split()[0], hint=f"{self.prog} --help lists the options"))


def located(
    source: Input[str], start: int, end: int, message: str, *, hint: str = "", notes: tuple[str, ...] = ()
) -> Diagnostic:
    """Return the diagnostic about `source[start:end]`, which shows the first of its lines."""
    first = source.get_start_of_line(start)
    line = source.content[first : source.get_end_of_line(start)]
    number = source.content.count("\n", 0, first) + 1
    return Diagnostic(message, source.name, number, start - first + 1, line, end - start, notes, hint)


def _cut(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def exit_code(run: Callable[[], int], shows_traceback: bool, described: Callable[[Exception], Diagnostic]) -> int:
    """Run a tool and return its exit code; an error is one message on standard error."""
    try:
        return run()
    except BrokenPipeError:
        # The reader of the output has closed it, as in `opt-tool ... | head`; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print_error(error, described(error), shows_traceback)
    return 1


def print_error(error: Exception, diagnostic: Diagnostic, shows_traceback: bool) -> None:
    """Print the diagnostic about an error to standard error, after its traceback if that is to be shown."""
    if shows_traceback:
        traceback.print_exception(error)
    print(diagnostic, file=sys.stderr)


def internal_error(error: Exception, tool: str) -> Diagnostic:
    """Return the diagnostic about a fault of a tool."""
    hint = "this is a fault of the tool; please report it with the output of --debug-traceback"
    return Diagnostic(f"internal error: {type(error).__name__}: {error}", tool, hint=hint)
