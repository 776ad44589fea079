"""Read the load of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def busy_seconds() -> float:
    """Return the seconds that all processors of the machine have been busy since it started."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", maxsplit=1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
