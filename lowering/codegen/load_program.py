"""Load an emitted program by running its text as a module."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, TypeAlias

from ...ir.text_file import read_text

PARTS = {"PLAN": "the plan", "step": "the step function"}
"""Names that a single-stage program defines; a program of several stages defines `STAGES` instead."""

STAGES = "STAGES"

Stages: TypeAlias = "Sequence[tuple[Any, Callable[..., Any]]]"
"""The plan and the step function of each stage."""


class ProgramError(ValueError):
    """An error for a file that is not a program; the message names the line and the reason."""


def load_program(path: str | Path) -> Stages:
    """
    Run the file at `path` and return its stages; most programs have one.

    Raises:
        ProgramError: the file is missing, fails to run, or is not a program.
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
        name: name of the file in tracebacks, which show its lines even if the file does not exist.

    Raises:
        ProgramError: the text fails to run, or is not a program.
    """
    # With None as modification time, the cached lines stay even if a file of this name changes later.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = ModuleType(f"shardwright_program_{Path(name).stem}")
    module.__file__ = name
    try:
        exec(compile(text, name, "exec"), module.__dict__)
    except SyntaxError as error:
        raise ProgramError(f"{name}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        # Name the innermost line of the program in the traceback.
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == name] or [1]
        raise ProgramError(f"{name}:{lines[-1]}: {type(error).__name__}: {error}") from error
    if STAGES in module.__dict__:
        return module.__dict__[STAGES]
    if missing := [part for part in PARTS if part not in module.__dict__]:
        lacks = " and ".join(f"{PARTS[part]} {part}" for part in missing)
        raise ProgramError(f"{name} lacks {lacks}; expected a file that shardwright wrote")
    return ((module.__dict__["PLAN"], module.__dict__["step"]),)
