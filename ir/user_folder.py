"""The user's folder for files that are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder() -> Path:
    """Return the folder of this user's cache: ``~/.cache/shardwright``, or below ``$XDG_CACHE_HOME``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shardwright"
