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
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

from ..api.step_names import OR_OWN, unknown_model
from ..ir.cluster_file import find_cluster
from ..ir.garbage import collector_paused, kept_to_the_end
from ..models.names import NAMES
from .cli_arguments import TOOL, mesh_of, parse_arguments, tool_error
from .diagnostics import Diagnostic, DiagnosticError, exit_code, internal_error


def refuse_early(options: Namespace) -> None:
    """Raise the error of the first argument that names no step, cluster, mesh, pins or passes."""
    for name, verify in _CHECKS.items():
        given = getattr(options, name, None)
        if isinstance(given, str):
            verify(given)


def _verify_step(spec: str, hint: str = "") -> None:
    """Refuse a step whose model or module does not exist."""
    module, colon, _ = spec.partition(":")
    if not colon:
        if spec not in NAMES:
            raise tool_error(f"{unknown_model(spec, NAMES)}; {OR_OWN}", hint)
        return
    top = module.partition(".")[0]
    # Only outer packages are looked up, because looking up a module in a package imports the package.
    if module != "hf" and top and top not in sys.modules and not _exists(top):
        raise tool_error(f"{spec}: there is no module {top!r}, here or installed")


def _exists(module: str) -> bool:
    return find_spec(module) is not None or PathFinder.find_spec(module, [str(Path.cwd())]) is not None


def _verify_target(target: str) -> None:
    """Refuse a target unless it is a folder, an IR file or the name of a step."""
    path = Path(target)
    if path.is_dir() or path.suffix == ".mlir":
        return
    if "/" in target and ":" not in target:
        raise tool_error(f"there is no folder {target}", "name a folder that `shardwright plan` wrote, or a step")
    _verify_step(target, "there is no folder of this name either, which `shardwright plan` would have written")


def _verify_pins(pins: str) -> None:
    from ..passes.search.pin_file import load_pins

    load_pins(pins)


def _verify_passes(pipeline: str) -> None:
    from ..passes.pipeline import Pipeline

    Pipeline.parse(pipeline)


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "step": _verify_step,
    "target": _verify_target,
    "cluster": find_cluster,
    "mesh": mesh_of,
    "pins": _verify_pins,
    "pipeline": _verify_passes,
}
"""Maps arguments, by their names in the parsed options, to their checks."""


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
    return exit_code(lambda: _run(words), "--debug-traceback" in words, diagnostic_of)


def _run(words: Sequence[str]) -> int:
    _check(words)
    options = parse_arguments(words)
    refuse_early(options)
    with only_json(getattr(options, "json", False)) as answer, collector_paused():
        options.answer = answer
        return resolve_name(f"{__package__}.{options.handler}")(options)


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
    return internal_error(error, TOOL)


if __name__ == "__main__":
    sys.exit(main())
