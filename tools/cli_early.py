"""Checks of the arguments that need no torch, so that a mistaken name is reported at once."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from ..api.step_names import OR_OWN, unknown_model
from ..ir.cluster_file import find_cluster
from ..models.names import NAMES
from .cli_arguments import mesh_of, tool_error


def refuse_early(options: Namespace) -> None:
    """Raise the error of the first argument that names no step, cluster, mesh, pins or passes."""
    for name, verify in _CHECKS.items():
        given = getattr(options, name, None)
        if isinstance(given, str):
            verify(given)


def _verify_step(spec: str, hint: str = "") -> None:
    """Refuse a step whose model or module does not exist."""
    module, colon, _ = spec.partition(":")
    if not colon:
        if spec not in NAMES:
            raise tool_error(f"{unknown_model(spec, NAMES)}; {OR_OWN}", hint)
        return
    top = module.partition(".")[0]
    # Only outer packages are looked up, because looking up a module in a package imports the package.
    if module != "hf" and top and top not in sys.modules and not _exists(top):
        raise tool_error(f"{spec}: there is no module {top!r}, here or installed")


def _exists(module: str) -> bool:
    return find_spec(module) is not None or PathFinder.find_spec(module, [str(Path.cwd())]) is not None


def _verify_target(target: str) -> None:
    """Refuse a target unless it is a folder, an IR file or the name of a step."""
    path = Path(target)
    if path.is_dir() or path.suffix == ".mlir":
        return
    if "/" in target and ":" not in target:
        raise tool_error(f"there is no folder {target}", "name a folder that `shardwright plan` wrote, or a step")
    _verify_step(target, "there is no folder of this name either, which `shardwright plan` would have written")


def _verify_pins(pins: str) -> None:
    from ..passes.search.pin_file import load_pins

    load_pins(pins)


def _verify_passes(pipeline: str) -> None:
    from ..passes.pipeline import Pipeline

    Pipeline.parse(pipeline)


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "step": _verify_step,
    "target": _verify_target,
    "cluster": find_cluster,
    "mesh": mesh_of,
    "pins": _verify_pins,
    "pipeline": _verify_passes,
}
"""Maps arguments, by their names in the parsed options, to their checks."""
