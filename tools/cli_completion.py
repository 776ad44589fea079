"""Completion of command lines in a shell, by argcomplete: commands, options, and the names of models and clusters."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

from ..ir.cluster_file import shipped_clusters
from ..ir.pins import PRESETS
from ..models.names import NAMES

_REQUESTED = "_ARGCOMPLETE"
"""The environment variable that a shell sets to ask for completions."""


def complete(parser: argparse.ArgumentParser, commands: Iterable[argparse.ArgumentParser]) -> None:
    """Answer the shell and end the process if it asks for completions."""
    if _REQUESTED not in os.environ:
        return
    try:
        import argcomplete
    except ImportError as error:
        raise SystemExit(f"completion needs argcomplete ({error}): pip install 'shardwright[completion]'") from error
    for action in (action for command in commands for action in command._actions):
        if (names := _names().get(action.dest)) is not None:
            # Argcomplete reads this attribute.
            setattr(action, "completer", _NamesAndFiles(names))
    argcomplete.autocomplete(parser)


def _names() -> dict[str, tuple[str, ...]]:
    """Return the names that an argument takes besides files, by its name in the parsed options."""
    clusters = tuple(shipped_clusters())
    return {"step": NAMES, "target": NAMES, "cluster": clusters, "pins": tuple(PRESETS), "plan": ()}


class _NamesAndFiles:
    """Completes an argument with names and with files and folders."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, prefix: str, **_: Any) -> list[str]:
        from argcomplete.completers import FilesCompleter

        files: list[str] = FilesCompleter()(prefix)
        return [*(name for name in self.names if name.startswith(prefix)), *files]
