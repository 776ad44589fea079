"""Messages about names that no step has; no module that is imported here needs torch."""

from __future__ import annotations

from collections.abc import Collection

from ..ir.plain import did_you_mean

OR_OWN = "or name your own as package.module:callable"


def unknown_model(name: str, known: Collection[str]) -> str:
    """Return the message about a name that no shipped step has, with the most similar known name."""
    return f"no shipped model is called {name!r}{did_you_mean(name, known)} (there are {', '.join(sorted(known))})"


def unknown_type(name: str, known: Collection[str]) -> str:
    """Return the message about a type of model that transformers does not have."""
    return f"transformers has no model type {name!r}{did_you_mean(name, known, most=3)}"
