"""The model as a tree of modules, each with its kinds of parallelism and the shardings of its parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ...ir.mesh import Mesh
from ...ir.sharding import Sharding
from ...ir.units import seconds_text
from ...passes.analysis.parallelism import ParameterSpread, per_axis
from ...passes.step.blocks import layer_of
from .content import Node, PageSection, Text, Tree
from .planned import Planned

HEAD = ("parameter", "shape", "home", "in forward", "optimizer states", "kinds of parallelism")


def layers_section(plan: Planned) -> PageSection:
    """Return the section with the modules of the model."""
    intro = (
        "Each module has the kinds of parallelism of its parameters by axis of the mesh, and the seconds that its ops "
        "compute in a step. The home of a parameter is its placement between steps; in forward it may have another "
        "one, in which case it is gathered or moved first. Equal modules are folded, and their seconds are averages."
    )
    roots = _roots(plan)
    if not roots:
        return PageSection("layers", "Layers and shardings", [Text("The step has no parameters.")])
    return PageSection(
        "layers", "Layers and shardings", [Text(intro), Tree(HEAD, [_node(run) for run in _runs(roots)])]
    )


@dataclass
class _Module:
    """A module while the tree is built; `seconds` includes its children."""

    name: str
    seconds: float = 0.0
    stages: dict[int, None] = field(default_factory=dict[int, None])
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    kinds: dict[str, None] = field(default_factory=dict[str, None])
    children: dict[str, _Module] = field(default_factory=dict[str, "_Module"])

    def path(self, path: str) -> Iterable[_Module]:
        """Yield the modules on a path below this one, which are added if they are missing."""
        module = self
        for part in filter(None, path.split(".")):
            module = module.children.setdefault(part, _Module(part))
            yield module

    @property
    def key(self) -> object:
        """Return a key that equal modules share; seconds are not part of it."""
        return tuple(self.rows), tuple(self.stages), tuple((each.name, each.key) for each in self.children.values())


def _roots(plan: Planned) -> list[_Module]:
    root = _Module("")
    weights = {spread.name.rpartition(".")[0] for _, spread in plan.spreads if len(spread.shape) > 1}
    for view, spread in plan.spreads:
        path, _, name = spread.name.rpartition(".")
        *_, module = root, *root.path(path)
        named = f"{name} (also {', '.join(spread.tied)})" if spread.tied else name
        module.rows.append((named, *_row(spread, view.mesh)))
        for each in (root, *root.path(path)):
            # A module has the kinds of its weights; its biases follow them.
            each.kinds |= dict.fromkeys(kinds_text(spread) if len(spread.shape) > 1 or path not in weights else ())
            each.stages |= {view.stage: None} if view.stage is not None else {}
    seconds: defaultdict[str, float] = defaultdict(float)
    for ranks in plan.busiest:
        for run in plan.simulation.ops(ranks.number):
            seconds[layer_of(run.op)] += run.end - run.start
    for path, spent in seconds.items():
        for each in root.path(path):
            each.seconds += spent
    # Parameters of the model itself have no module.
    return [*([replace(root, name="(the model)", children={})] if root.rows else []), *root.children.values()]


def _row(spread: ParameterSpread, mesh: Mesh) -> tuple[str, ...]:
    shape = "x".join(map(str, spread.shape)) or "scalar"
    used = [each for each in spread.uses if each != spread.home]
    states = [each for each in spread.states if each != spread.home]
    return (
        shape,
        placements(spread.home, mesh),
        " or ".join(placements(each, mesh) for each in used) or "the same",
        " or ".join(placements(each, mesh) for each in states) or ("the same" if spread.states else "none"),
        "; ".join(kinds_text(spread)),
    )


def placements(sharding: Sharding, mesh: Mesh) -> str:
    """Return the placement on each axis, as `node: Replicate, gpu: Shard(0)`."""
    named = ", ".join(f"{axis}: {placement}" for axis, placement in per_axis(sharding, mesh).items())
    uneven = any(dim.offsets is not None for dim in sharding.dims)
    return (named or "one device") + (" (uneven)" if uneven else "")


def kinds_text(spread: ParameterSpread) -> list[str]:
    """Return the kinds of parallelism of a parameter by axis, as `gpu: data parallel + fully sharded (ZeRO-3)`."""
    return [f"{axis}: {' + '.join(kinds)}" for axis, kinds in spread.kinds.items()]


def _node(members: Sequence[_Module]) -> Node:
    """Return the node of a module, or of equal ones; its seconds are their average."""
    seconds = sum(each.seconds for each in members) / len(members)
    stages = sorted({stage for each in members for stage in each.stages})
    # Each axis is shown once.
    by_axis: dict[str, dict[str, None]] = {}
    for kind in members[0].kinds:
        axis, _, named = kind.partition(": ")
        by_axis.setdefault(axis, {}).update(dict.fromkeys(named.split(" + ")))
    figures = [
        "; ".join([f"{axis}: {' + '.join(named)}" for axis, named in by_axis.items()]),
        f"computes {seconds_text(seconds)}{' each' if len(members) > 1 else ''}" if seconds else "",
        f"stage {', '.join(map(str, stages))}" if stages else "",
    ]
    children = [
        replace(_node([each.children[child.name] for each in members for child in run]), name=_names(run))
        for run in _runs(members[0].children.values())
    ]
    return Node(_names(members), " · ".join(filter(None, figures)), members[0].rows, children)


def _runs(modules: Iterable[_Module]) -> list[list[_Module]]:
    return [list(run) for _, run in groupby(modules, _fold_key)]


def _fold_key(module: _Module) -> object:
    """Return a key that neighbours share if they are folded: equal elements of a list of modules."""
    return module.key if module.name.isdigit() else module.name


def _names(members: Sequence[_Module]) -> str:
    first = members[0].name
    return first if len(members) == 1 else f"{first} to {members[-1].name} ({len(members)} equal modules)"
