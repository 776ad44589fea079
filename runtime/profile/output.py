"""The output file of a profile: the cluster, with comments on its fit and on missing measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...ir.cluster import Cluster
from ...ir.cluster_file import cluster_toml
from ...ir.text_file import write_atomically
from ...ir.toml_text import comment
from .journal import Journal
from .result import FittedNumbers, Profile, missing_of, profile_of, with_table
from .samples import OpSample


@dataclass(frozen=True)
class Output:
    """
    The contents of a profile's output file.

    Args:
        base: an existing cluster that receives the times of the ops, or None to measure a new cluster.
        in_step: ops that were timed in a step; their times correct the rates of a new cluster.
    """

    name: str
    samples: tuple[OpSample, ...]
    base: Cluster | None = None
    in_step: tuple[OpSample, ...] = ()

    def profile(self, journal: Journal) -> Profile:
        """
        Return the cluster with its fits and missing measurements.

        Raises:
            ProfileError: there are too few measurements for a cluster.
        """
        if self.base is None:
            return profile_of(journal, self.samples, self.name, self.in_step)
        return Profile(with_table(self.base, journal, self.samples), (), missing_of(journal, self.samples))

    def write(self, journal: Journal, path: Path) -> Profile:
        """Write the cluster file atomically."""
        profile = self.profile(journal)
        write_atomically(path, profile_text(profile))
        return profile


def profile_text(profile: Profile) -> str:
    """Return the text of a cluster file."""
    lines = [comment(f"{fit.what}: {fit_text(fit)}") for fit in profile.fits]
    if lines:
        lines.insert(0, "# Fitted to measured times, with the median and the largest relative error:")
    if profile.missing:
        is_partial = any(not why.startswith("one call takes") for why in profile.missing.values())
        lines += ["# PARTIAL: not everything was measured." if is_partial else "# Left out:"]
        lines += [comment(f"  {what}: {why}") for what, why in profile.missing.items()]
    return "\n".join([*lines, "", cluster_toml(profile.cluster)])


def fit_text(fit: FittedNumbers) -> str:
    """Return the numbers of a fit in a line."""
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in fit.found.items())
    return f"{numbers}; {fit.points} points, errors {fit.middle_error:.1%} and {fit.worst_error:.1%}"
