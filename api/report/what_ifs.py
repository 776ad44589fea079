"""The step of a plan on changed hardware: links, latencies and devices that are faster or slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.cluster import Cluster
from ...ir.units import seconds_text
from ...ir.what_if import WhatIfError, changed, fields, number
from ...passes.analysis.simulation.simulate import simulate_module
from .content import BLUE, GREEN, BarPart, PageSection, PageTable, Text
from .planned import Planned

_FACTORS = {"bandwidth": (2.0, 0.5), "beta": (0.5, 2.0), "latency": (0.5,), "alpha": (0.5,)}
"""The factors to try for each field of a link."""


@dataclass(frozen=True)
class WhatIf:
    """A change of fields of the cluster by a factor."""

    what: str
    fields: tuple[str, ...]
    factor: float

    def applied(self, cluster: Cluster) -> Cluster:
        """Return the changed cluster."""
        for field in self.fields:
            cluster = changed(cluster, field, number(cluster, field) * self.factor)
        return cluster


def what_ifs(cluster: Cluster) -> Iterator[WhatIf]:
    """Yield changes of each link and each kind of device of a cluster."""
    known = fields(cluster)
    for path in known:
        section, _, field = path.rpartition(".")
        if path.startswith(("level.", "link.")) and field in _FACTORS and _is_number(cluster, path):
            # Aliases of levels would repeat them.
            if path.startswith("link.") and cluster.link(section.removeprefix("link.")) is None:
                continue
            yield from (WhatIf(f"{path} x {factor:g}", (path,), factor) for factor in _FACTORS[field])
    for device in cluster.kinds_used:
        base = f"device.{device.kind}."
        rates = tuple(path for path in known if path.startswith(f"{base}flops."))
        for what, paths, factor in (
            ("FLOP/s of all dtypes", rates, 2.0),
            ("memory bandwidth", (f"{base}memory_bandwidth",), 2.0),
            ("launch of an op", (f"{base}launch",), 0.5),
        ):
            if all(path in known and _is_number(cluster, path) for path in paths) and paths:
                yield WhatIf(f"{device.kind}: {what} x {factor:g}", paths, factor)


def _is_number(cluster: Cluster, path: str) -> bool:
    try:
        return number(cluster, path) > 0
    except WhatIfError:
        return False


def what_ifs_section(plan: Planned) -> PageSection:
    """Return the section with the steps of the plan on changed hardware."""
    now = plan.simulation.seconds
    found = [
        (each, simulate_module(plan.module, each.applied(plan.cluster))[0].seconds) for each in what_ifs(plan.cluster)
    ]
    found.sort(key=lambda pair: pair[1])
    longest = max([now, *(step for _, step in found)]) or 1.0
    rows = [("as it is", seconds_text(now), "")]
    rows += [(each.what, seconds_text(step), f"{step / now - 1:+.1%}") for each, step in found]
    bars = [
        (BarPart("step", step / longest, GREEN if step is now else BLUE),) for step in (now, *(s for _, s in found))
    ]
    text = (
        "Each row is the step of this plan on a cluster with one change; another plan may be faster there. "
        f"`shardwright simulate {plan.folder} --set FIELD=VALUE --replan` searches again."
    )
    table = PageTable("The step on changed hardware", ("change", "step", "difference"), rows, bars)
    return PageSection("what-if", "What if", [Text(text), table])
