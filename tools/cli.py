"""
`shardwright`: plan, run and check training steps from a command line.

Results go to standard output, progress and errors to standard error. Every failure is one message with the problem and
its remedy, and exit code 1. Each command imports only the libraries that it needs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pkgutil import resolve_name

from ..ir.garbage import collector_paused, kept_to_the_end
from .cli_arguments import TOOL, parse_arguments
from .cli_early import refuse_early
from .diagnostics import Diagnostic, DiagnosticError

Answer = Callable[[Mapping[str, object]], None]
"""Takes the result of a command, for JSON."""


@contextmanager
def only_json(asked: bool) -> Generator[Answer, None, None]:
    """
    Write the result that the block gives to the yielded function to standard output, if it is asked for.

    All output of the block, of processes that it starts and of the user's model goes to standard error meanwhile.
    """
    found: list[Mapping[str, object]] = []
    if not asked:
        yield found.append
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield found.append
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    for record in found:
        print(json.dumps(_plain(record), indent=2, allow_nan=False))


def _plain(value: object) -> object:
    """Return a value of JSON; numbers that JSON does not have, such as NaN, become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_MOST_CHARACTERS = 4096
"""The maximum length of an argument: the maximum length of a path."""

PACKAGE = (__package__ or "").split(".", maxsplit=1)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the arguments of the process, and return its exit code."""
    if arguments is None:
        with kept_to_the_end():
            return main(sys.argv[1:])
    words = list(arguments)
    try:
        _check(words)
        options = parse_arguments(words)
        refuse_early(options)
        with only_json(getattr(options, "json", False)) as answer, collector_paused():
            options.answer = answer
            command = resolve_name(f"{__package__}.{options.handler}")
            return command(options)
    except BrokenPipeError:
        # The reader of the output has closed it; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if "--debug-traceback" in words:
            traceback.print_exception(error)
        print(diagnostic_of(error), file=sys.stderr)
    return 1


def _check(words: Sequence[str]) -> None:
    """Raise DiagnosticError for words that cannot be a path or a value, so that messages that quote them stay short."""
    for number, word in enumerate(words, 1):
        if len(word) > _MOST_CHARACTERS or "\0" in word:
            problem = "has a null character" if "\0" in word else f"has {len(word)} characters"
            hint = f"an argument has at most {_MOST_CHARACTERS} characters; put longer text into a file"
            raise DiagnosticError(Diagnostic(f"argument {number}, {word[:20]!r}, {problem}", TOOL, hint=hint))


def diagnostic_of(error: Exception) -> Diagnostic:
    """Return the message of an error for the user; errors of this package and of the system explain themselves."""
    if isinstance(error, DiagnosticError):
        return error.diagnostic
    if type(error).__module__.split(".", maxsplit=1)[0] == PACKAGE:
        # The text of an error with a hint has several lines.
        hint = getattr(error, "hint", "")
        return Diagnostic(getattr(error, "message", "") if hint else str(error), TOOL, hint=hint)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Diagnostic(f"{where}{error.strerror or error}", TOOL)
    hint = "this is a fault of the tool; please report it with the output of --debug-traceback"
    return Diagnostic(f"internal error: {type(error).__name__}: {error}", TOOL, hint=hint)


if __name__ == "__main__":
    sys.exit(main())
