"""The cache of inferred rules: a JSON file in the user's folder, one per version of torch."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch

from ...dialects.aten import OpaqueOp
from ...ir.text_file import read_text
from ...ir.user_folder import user_folder
from ..calls.calls import resolve
from .apart import run_apart
from .probe import believed, infer_rule, small_use
from .probed_rule import ProbedRule

_FORMAT = 1
_MOST_SECONDS = 30.0


def user_cache() -> Path:
    """Return the path of the user's cache of rules."""
    return user_folder() / f"probed-rules-{_FORMAT}-torch-{torch.__version__}.json"


class ProbeCache:
    """
    A cache of inferred rules by use.

    A rule of another run is checked again before use, since the op may have changed. For the same reason, the cache
    stores uses without a rule only for torch's own ops. A file that cannot be read or written is ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, ProbedRule] = {}
        self._stored: dict[str, object] | None = None

    def rule(self, op: OpaqueOp) -> ProbedRule | None:
        """
        Return the rule of this use of an op, from memory, the file or a new inference, or None if it cannot be probed.

        Raises:
            DiedError: the op ended the process of the probe.
        """
        self._load()
        if (found := run_apart(lambda: self._found(op), _MOST_SECONDS)) is None:
            return None
        key, rule = found
        self._known[key] = rule
        return rule

    def _found(self, op: OpaqueOp) -> tuple[str, ProbedRule] | None:
        if (use := small_use(op)) is None:
            return None
        specs = (", ".join(f"{list(shape)}:{dtype}" for shape, dtype in side) for side in (use.specs, use.results))
        attributes = ", ".join(f"{name}={value}" for name, value in sorted(use.attributes, key=lambda each: each[0]))
        key = f"{use.target} | {resolve(use.call.target)._schema} | {' -> '.join(specs)} | {attributes}"
        if (known := self._known.get(key)) is not None:
            return key, known
        stored = self._load().get(key)
        return key, infer_rule(use) if stored is None else believed(use, _read(stored))

    def save(self) -> None:
        """Add the rules of this run to the file."""
        rules = {key: rule.as_json() for key, rule in self._known.items() if rule or key.startswith("aten::")}
        if rules.items() <= self._load().items():
            return
        self._stored = {**_contents(self._path), **rules}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "w") as file:
                json.dump(self._stored, file)
            Path(name).replace(self._path)
        except OSError:
            return

    def _load(self) -> dict[str, object]:
        if self._stored is None:
            self._stored = _contents(self._path)
        return self._stored


def _contents(path: Path) -> dict[str, object]:
    try:
        contents = json.loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return contents if isinstance(contents, dict) else {}


def _read(stored: object) -> ProbedRule:
    try:
        return ProbedRule.of_json(stored)
    except (ValueError, TypeError, LookupError):
        return ProbedRule(())


CACHE = ProbeCache(user_cache())
"""The cache of this process."""
