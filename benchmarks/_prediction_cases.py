"""The plans whose steps are predicted and measured: five model families on two and four processes, five plans each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from _plain_plans import pins_of

from shardwright.api.compile import CompiledStep, PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster


@dataclass(frozen=True)
class Form:
    """
    A way of planning a step: a preset, entries of a pin file or a search; or a pipeline of passes.

    `mesh` replaces the mesh of the group.
    """

    pins: str = ""
    mesh: str = ""
    pipeline: str | None = None
    ratios: str = "even"


def _pinned(preset: str, program: str) -> str:
    return f"prepare,search-strategy{{algorithm=fixed pins={preset}}},{program},finish"


_HOSTS = "node=2,gpu=2"
FORMS: dict[str, Form] = {
    "searched": Form(),
    "dp": Form("dp"),
    "tp": Form("tp"),
    "zero3": Form("zero3"),
    "uneven": Form("dp", ratios="0.625,0.375"),
    "hybrid": Form(pins_of(("dp", ("node",)), ("tp", ("gpu",))), mesh=_HOSTS),
    "grid": Form(mesh=_HOSTS),
    "no overlap": Form(pipeline=_pinned("zero3", "communicate,join-updates")),
    "micro": Form(pipeline=_pinned("dp", "program{parts=2}")),
    "duplex": Form(pipeline=_pinned("tp", "program{mode=duplex parts=2}")),
}
"""The ways of planning, by name."""

SEARCHED_FORMS = {name for name, form in FORMS.items() if not form.pins and form.pipeline is None}
"""Names of the ways of planning whose strategy is searched for."""


@dataclass(frozen=True)
class Group:
    """Plans of one step on one number of processes, whose fastest should be predicted to be the fastest."""

    step: str
    ranks: int
    forms: Sequence[str]
    mesh: str = ""

    @property
    def name(self) -> str:
        """Return the name of the group, for instance `gpt2-large x4`."""
        return f"{self.step} x{self.ranks}"


_PRESETS = ("searched", "dp", "tp", "zero3")
GROUPS: tuple[Group, ...] = (
    Group("mlp-small", 2, (*_PRESETS, "uneven")),
    Group("mlp-large", 4, (*_PRESETS, "hybrid")),
    Group("gpt2-large", 2, (*_PRESETS, "duplex")),
    Group("gpt2-small", 4, (*_PRESETS, "hybrid")),
    Group("vit-large", 2, (*_PRESETS, "micro")),
    Group("vit-small", 4, (*_PRESETS, "grid")),
    Group("vgg-large", 2, (*_PRESETS, "no overlap")),
    Group("vgg-small", 4, (*_PRESETS, "hybrid")),
    Group("moe-small", 2, (*_PRESETS, "uneven")),
    Group("moe-large", 4, (*_PRESETS, "no overlap")),
)
"""Fifty plans: each family once on two processes and once on four."""


_FAMILIES = ("mlp", "gpt2", "vit", "vgg", "moe")
EMULATED_GROUPS: dict[str, tuple[Group, ...]] = {
    "two-hosts": (
        *(Group(f"{family}-small", 4, (*_PRESETS, "hybrid"), _HOSTS) for family in _FAMILIES),
        *(Group(f"{family}-large", 4, (*_PRESETS, "no overlap"), _HOSTS) for family in _FAMILIES),
    ),
    "three-hosts": (
        *(Group(f"{family}-small", 3, (*_PRESETS, "no overlap")) for family in _FAMILIES),
        *(Group(f"{family}-large", 3, (*_PRESETS, "micro")) for family in _FAMILIES if family != "moe"),
        Group("moe-large", 3, (*_PRESETS, "no overlap")),  # its experts need the whole batch, so `micro` cannot plan it
    ),
}
"""Fifty plans for each emulated site, by name of the site: a small and a large model of each family."""


def mesh_of(group: Group, form: str) -> str:
    """Return the mesh of a plan of the group, as a string."""
    return FORMS[form].mesh or group.mesh or f"gpu={group.ranks}"


def meshes(groups: Sequence[Group]) -> list[str]:
    """Return each mesh that a plan of the groups needs, once."""
    return list(dict.fromkeys(mesh_of(group, form) for group in groups for form in group.forms))


def plan(step: TrainingStep, form: str, cluster: Cluster, keep: float | None = None) -> CompiledStep:
    """Compile `step` for `cluster` in the given form, and keep the share `keep` of activations for backward."""
    way = FORMS[form]
    if way.pipeline is not None:
        options = PlanOptions(pipeline=way.pipeline)
    else:
        options = PlanOptions(pins=way.pins or None, ratios=way.ratios, keep_activations=keep)
    return compile_step(step, cluster, options, name=form.replace(" ", "_"))
