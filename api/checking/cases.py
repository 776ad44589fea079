"""The cases of a check: a plan to check, its IR and program, and the result of its comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ...ir.cluster import Cluster
from ...ir.cluster_file import find_cluster
from ...ir.mesh import Mesh
from ...ir.submesh import on_mesh
from ...lowering.capture.calling import Batch
from ...passes.add_cluster import add_cluster
from ...passes.pipeline import run_pipeline
from ...passes.search.pin_file import is_pin_text
from ...runtime.recording import drawn_alike
from ..calibration.local_cluster import GENERIC
from ..compile import CompiledStep, PlanAlgorithm, PlanOptions, import_training_step, lower
from ..steps import find_step
from ..training_step import TrainingStep
from .comparison import Worst
from .reference import vary_batch, with_optimizer

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
SEED = 0


@dataclass(frozen=True)
class CheckCase:
    """
    One plan to check.

    Args:
        step: a name for `find_step`, or a function that makes the training step (and can be pickled).
        pins: a pin file, the name of a preset, or pins as TOML text; by default the search decides everything.
        dtype: the dtype of every floating-point parameter, buffer and batch item.
        optimizer: ``sgd`` (with momentum) or ``adamw``; by default the step's own.
        cluster: the cluster whose devices and links are arranged as `mesh`; by default a generic one.
        algorithm: the algorithm of the search; by default ``fixed`` with pins and ``eliminate`` without.
        pipeline: a pass pipeline that replaces the usual one.
        ratios, keep_activations: as in `PlanOptions`.
        compile: whether the computation between collectives is compiled.
        schedule: the factors of the learning rates, by step; 1 for later steps.
    """

    step: str | Callable[[], TrainingStep]
    mesh: Mesh
    pins: Path | str | None = None
    dtype: torch.dtype = torch.float32
    optimizer: str | None = None
    steps: int = 5
    cluster: Cluster | None = None
    algorithm: PlanAlgorithm | None = None
    pipeline: str | None = None
    ratios: str = "auto"
    schedule: tuple[float, ...] = ()
    keep_activations: float | None = None
    compile: bool = False

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.step if isinstance(self.step, str) else getattr(self.step, "__name__", "step")

    def training_step(self) -> TrainingStep:
        """Return the step with the requested optimizer."""
        with drawn_alike():
            step = find_step(self.step) if isinstance(self.step, str) else self.step()
        return with_optimizer(step, self.optimizer)

    def factor(self, number: int) -> float:
        """Return the factor of the learning rates in step `number`, counted from 1."""
        return self.schedule[number - 1] if number <= len(self.schedule) else 1.0

    def batches(self) -> Iterator[Batch]:
        """Return the batch of every step."""
        example = self.training_step().batch
        return (vary_batch(example, number, self.dtype) for number in range(self.steps))

    def __str__(self) -> str:
        mesh = "x".join(str(axis.size) for axis in self.mesh.axes)
        dtype = str(self.dtype).removeprefix("torch.")
        pins = "searched" if self.pins is None else "pinned" if is_pin_text(self.pins) else self.pins
        ratios = "" if self.ratios == "auto" else f", ratios {self.ratios}"
        compiled = ", compiled" if self.compile else ""
        return f"{self.name} on {mesh}, {pins}, {dtype}, {self.optimizer or 'own optimizer'}{ratios}{compiled}"


@dataclass(frozen=True)
class CheckResult:
    """
    The comparison of a plan with one device.

    Args:
        errors: the largest error of every kind of value that was compared.
        message: the error that prevented the comparison, or an empty string.
        own: by kind, the change of a run on one device by rounding alone, which is allowed if it is larger.
    """

    case: CheckCase
    errors: tuple[Worst, ...] = ()
    message: str = ""
    tolerance: float = 0.0
    own: Mapping[str, float] = field(default_factory=dict[str, float])

    def allows(self, worst: Worst) -> bool:
        """Return whether an error is small enough."""
        return worst.error <= max(self.tolerance, self.own.get(worst.kind, 0.0))

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
        return not self.message and all(map(self.allows, self.errors))

    def __str__(self) -> str:
        details = self.message or "; ".join(
            f"{worst.kind} {worst.error:.2g} ({worst.name}, step {worst.step})" for worst in self.errors
        )
        own = "".join(f"; rounding changes {kind} by {error:.2g} on one device" for kind, error in self.own.items())
        return f"{self.case}: {'agrees' if self.passed else 'DIFFERS'}: {details} (tolerance {self.tolerance:g}{own})"


def imported(case: CheckCase) -> ModuleOp:
    """Return the IR of a case's step, before any cluster is added; a copy, because cases with one capture share it."""
    return _imported(*capture_key(case)).clone()


def capture_key(case: CheckCase) -> tuple[str | Callable[[], TrainingStep], torch.dtype, str | None]:
    """Return the properties of a case that determine the IR of its step."""
    return case.step, case.dtype, case.optimizer


@lru_cache(maxsize=32)
def _imported(step: str | Callable[[], TrainingStep], dtype: torch.dtype, optimizer: str | None) -> ModuleOp:
    made = CheckCase(step, Mesh.of(gpu=1), dtype=dtype, optimizer=optimizer).training_step()
    return import_training_step(made, dtype=dtype, gradients=True)


def plan_case(case: CheckCase, module: ModuleOp) -> str:
    """
    Run the passes of a case on its imported step, which is modified, and return the pipeline as text.

    The default passes do not divide the batch, and use the mesh of the case.
    """
    cluster = on_mesh(case.cluster or find_cluster(GENERIC), case.mesh)
    add_cluster(module, cluster)
    passes = _options(case).passes(cluster)
    run_pipeline(Context(), module, passes)
    return str(passes)


def _options(case: CheckCase) -> PlanOptions:
    usual: PlanAlgorithm | None = None if case.pipeline is not None else "fixed" if case.pins else "eliminate"
    asked = PlanOptions(case.algorithm or usual, case.pins, case.dtype, True, case.pipeline, case.ratios)
    return replace(asked, keep_activations=case.keep_activations)


def compile_case(case: CheckCase, module: ModuleOp) -> CompiledStep:
    """Plan a case on its imported step, which is modified."""
    cluster = on_mesh(case.cluster or find_cluster(GENERIC), case.mesh)
    return lower(module, cluster, _options(case), name=case.name, step_spec=None, seconds={})
