"""Loading an emitted program: running its text as a module."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from ...ir.text_file import read_text

PARTS = {"PLAN": "the plan", "step": "the step function"}
"""What a program of one stage has; one of several has all of theirs in `STAGES`."""

STAGES = "STAGES"

Stages: TypeAlias = "Sequence[tuple[Any, Callable[..., Any]]]"
"""Of each stage its plan and its step function."""


class ProgramError(ValueError):
    """A file that is not a program; the message says where and why."""


def load_program(path: str | Path) -> Stages:
    """
    Run the file at `path` and return its stages, of which most programs have one.

    Raises:
        ProgramError: there is no such file, it does not run, or it is no program.
    """
    file = Path(path).resolve()
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(f"cannot read the program {file}: {error}") from error
    return load_text(text, str(file))


def load_text(text: str, name: str) -> Stages:
    """
    Run the text of a program and return its stages.

    Args:
        name: what tracebacks call the file; they show its lines, whether or not there is such a file.

    Raises:
        ProgramError: it does not run, or it is no program.
    """
    # A size and time of None: the lines stay, even if a file of that name changes later.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = ModuleType(f"shardwright_program_{Path(name).stem}")
    module.__file__ = name
    try:
        exec(compile(text, name, "exec"), module.__dict__)
    except SyntaxError as error:
        raise ProgramError(f"{name}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise ProgramError(f"{name}:{_line(error, name)}: {type(error).__name__}: {error}") from error
    if STAGES in module.__dict__:
        return module.__dict__[STAGES]
    if missing := [part for part in PARTS if part not in module.__dict__]:
        lacks = " and ".join(f"{PARTS[part]} {part}" for part in missing)
        raise ProgramError(f"{name} lacks {lacks}; expected a file that shardwright wrote")
    return ((module.__dict__["PLAN"], module.__dict__["step"]),)


def _line(error: Exception, name: str) -> int:
    """The last line of the program that the error passed through."""
    line, trace = 1, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
