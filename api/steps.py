"""Finding what a command line names: training steps and clusters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from pathlib import Path

from ..ir.cluster import Cluster
from ..ir.cluster_file import ClusterFileError, load_cluster, parse_cluster
from .training_step import TrainingStep

CLUSTERS = "shardwright.examples.clusters"


class StepNotFound(ValueError):
    """A name that leads to no training step; the message says how far it led and what to do."""


def find_step(spec: str) -> TrainingStep:
    """
    The training step of a shipped model's name, or of `package.module:callable` returning a `TrainingStep`.

    Modules are looked for in the working directory first.

    Raises:
        StepNotFound: there is none.
    """
    if ":" not in spec:
        from ..models.registry import training_step

        try:
            return training_step(spec)
        except ValueError as error:
            raise StepNotFound(f"{error}; or name your own as package.module:callable") from error
    made = _callable(spec)()
    if not isinstance(made, TrainingStep):
        raise StepNotFound(
            f"{spec} returned a {type(made).__name__}, expected a shardwright.TrainingStep: end it in "
            "`return TrainingStep(model, loss, optimizer, batch)`"
        )
    return made


def _callable(spec: str) -> Callable[[], object]:
    module_name, _, name = spec.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise StepNotFound(f"{spec}: there is no module {error.name!r}, here or installed") from error
    except ValueError as error:
        raise StepNotFound(f"{spec}: expected a shipped name or package.module:callable") from error
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        names = ", ".join(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
        raise StepNotFound(f"{spec}: {module_name} has no callable {name!r}; it has {names or 'none'}")
    return found


def shipped_clusters() -> tuple[str, ...]:
    """The names of the cluster files that are installed."""
    names = (Path(entry.name) for entry in files(CLUSTERS).iterdir())
    return tuple(sorted(path.stem for path in names if path.suffix == ".toml"))


def find_cluster(name: str | Path) -> Cluster:
    """
    The cluster of a file, or the shipped one of that name.

    Raises:
        ClusterFileError: there is none such, or the file is wrong; the message says where.
    """
    if str(name) in shipped_clusters():
        entry = files(CLUSTERS) / f"{name}.toml"
        return parse_cluster(entry.read_text(encoding="utf-8"), str(entry))
    path = Path(name)
    if not path.suffix and not path.exists():
        known = ", ".join(shipped_clusters())
        raise ClusterFileError(f"{name}: neither a cluster file nor the name of a shipped one ({known})")
    return load_cluster(path)
