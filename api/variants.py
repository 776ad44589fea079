"""Additional programs of a step: the forward pass for evaluation, and steps for batches of other shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ..ir.garbage import collector_paused
from ..ir.not_supported import OTHER_SHAPE
from ..lowering.capture.calling import Batch
from ..lowering.capture.capture import OutputForm, Returns, capture_forward
from ..lowering.codegen.emit_python import emit_python
from ..lowering.codegen.load_program import load_text
from ..lowering.importer.step import import_step
from ..lowering.probe.at_use import narrow_rules, refuted_rules
from ..passes.draw_independently import DrawIndependentlyPass
from ..passes.errors import PassError
from ..passes.pipeline import Pipeline, run_pipeline
from ..passes.planning.state_placement import StatePlacement
from ..passes.verification import first_fault
from ..runtime.agreement import made_by_rank_0, verify_alike
from ..runtime.batches import LocalRows
from ..runtime.communicator import Communicator
from ..runtime.compiled.load import compiled_stages
from ..runtime.compiled.usable import verify_usable
from ..runtime.executor import Executor, RankProgram
from ..runtime.groups import Handles
from ..runtime.plan import PlanError
from ..runtime.stages import Stage, connect
from ..runtime.transfers import Lines
from .batch_form import BatchForm, Shapes, shapes_text
from .compile import import_training_step, versions
from .training_step import TrainingStep

MOST = 64
"""The default limit on the number of programs for evaluation and prediction of a step."""

Made: TypeAlias = "tuple[str, OutputForm | None]"
"""The text of a program, and the structure of the model's output if the program returns the output."""


@dataclass(frozen=True)
class Planner:
    """
    A planner of programs whose parameters, states and buffers have the same placement as in the plan of training.

    Args:
        homes: the placements in the plan of training.
        dtype: the dtype of every floating-point tensor; by default each tensor keeps its own.
        draws_independently: whether each rank draws its own random numbers.
        probe: whether rules of unknown ops are inferred.
    """

    step: TrainingStep
    homes: StatePlacement
    name: str
    dtype: torch.dtype | None = None
    draws_independently: bool = False
    probe: bool = True

    def forward(self, returns: Returns, batch: Batch) -> Made:
        """Return the program of the forward pass in eval mode; CaptureError or PassError if there is none."""
        step = self.step
        options = {"metrics": step.metrics, "precision": step.precision, "dtype": self.dtype}
        captured, form = capture_forward(step.model, step.loss, batch, returns=returns, **options)
        module = import_step(captured, probe=self.probe, no_rows=step.no_rows)
        return self._planned(module, self.homes.plan_forward), form

    def training(self, batch: Batch) -> Made:
        """Return the program of the step for another batch; CaptureError or PassError if there is none."""
        module = import_training_step(replace(self.step, batch=batch), dtype=self.dtype, probe=self.probe)
        return self._planned(module, self.homes.plan_step), None

    def _planned(self, imported: ModuleOp, plan: Callable[[ModuleOp], ModuleOp]) -> str:
        """Return the program of an imported module; plan again if an inferred rule fails at its use."""
        with collector_paused():
            module, first = imported.clone(), [DrawIndependentlyPass()] if self.draws_independently else []
            run_pipeline(Context(), module, Pipeline.of(first, "prepare"), verify_each=False)
            module = plan(module)
            if refuted := refuted_rules(module):
                narrow_rules(imported, refuted)
                return self._planned(imported, plan)
            run_pipeline(Context(), module, "finish", verify_each=False)
            if fault := first_fault(module):
                raise PassError("plan", "invalid", fault.message, fault.op)
            return emit_python(module, name=self.name, step_spec=None, versions=versions())


@dataclass
class Connections:
    """
    The connections that the programs of a job share.

    Args:
        compiles: whether the computation between collectives is compiled.
        handles: the process groups, by their ranks.
        lines: the connections between stages, or None before the first program with stages.
    """

    device: torch.device
    compiles: bool = False
    handles: Handles = field(default_factory=dict[tuple[int, ...], dist.ProcessGroup | None])
    lines: Lines | None = None

    def verify(self) -> None:
        """Raise PlanError if programs are to be compiled but there is no compiler."""
        if self.compiles:
            verify_usable(self.device)

    def load(self, text: str, name: str) -> list[Stage]:
        """Return the stages of a program."""
        stages = [Stage(*each) for each in load_text(text, name)]
        return compiled_stages(stages, text, self.device) if self.compiles else stages

    def connect(self, stages: Sequence[Stage], *, checked: bool = False) -> Communicator:
        """Return the communicator of a program, `checked` or not; every rank must call this."""
        if len(stages) > 1 and self.lines is None:
            self.lines = Lines()
        return connect(stages, self.device, lines=self.lines, handles=self.handles, checked=checked)


@dataclass
class Variants:
    """
    The programs of one step on one rank, created on first use; every rank must request the same programs.

    Args:
        form: the form of its batches.
        most: the limit on the number of programs of the forward pass.
    """

    executor: Executor
    form: BatchForm
    connections: Connections
    planner: Planner | None
    most: int = MOST
    opened: Callable[[], AbstractContextManager[object]] = nullcontext
    declared: dict[Shapes, RankProgram] = field(default_factory=dict[Any, RankProgram], init=False)
    _forward: dict[object, tuple[RankProgram, OutputForm | None]] = field(default_factory=dict[Any, Any], init=False)

    def declare(self, batch: Batch) -> None:
        """Plan the step for a batch of another shape."""
        shapes = self.form.shapes("parallelize(shapes=...)", batch)
        if shapes == self._example or shapes in self.declared:
            return
        verify_alike("shapes", shapes)
        like = self.form.like(shapes, self.form.plain(batch))
        program, _ = self._made(f"the step for {shapes_text(shapes)}", lambda planner: planner.training(like))
        self.declared[shapes] = program

    def training(self, batch: Batch | LocalRows) -> RankProgram | None:
        """
        Return the program that trains on a batch, or None for the program of the example.

        Raises:
            PlanError: the step was not planned for the batch's shape.
        """
        if isinstance(batch, LocalRows):
            return self._of_rows(batch)
        shapes = self.form.shapes("step()", batch)
        if shapes == self._example:
            return None
        if (program := self.declared.get(shapes)) is None:
            raise PlanError(self._undeclared(shapes_text(shapes)))
        return program

    def _of_rows(self, batch: LocalRows) -> RankProgram | None:
        if batch.count is None or batch.count == self.form.rows:
            return None
        programs = self.with_rows(batch.count)
        if len(programs) != 1:
            several = f"{len(programs)} shapes with {batch.count} rows are declared: give step() the global batch"
            raise PlanError(several if programs else self._undeclared(f"{batch.count} rows"))
        return programs[0]

    def with_rows(self, count: int) -> list[RankProgram]:
        """Return the programs of declared shapes that have `count` rows."""
        return [program for shapes, program in self.declared.items() if shapes[0][1][:1] == (count,)]

    def _undeclared(self, given: str) -> str:
        known = "; ".join(map(shapes_text, (self._example, *self.declared)))
        return f"step() was given a batch of {given}, and is planned for {known}: {OTHER_SHAPE.instead}"

    @property
    def _example(self) -> Shapes:
        return tuple((name, tuple(each.shape)) for name, each in self.form.tensors.items())

    def forward(self, returns: Returns, batch: Batch | LocalRows) -> tuple[RankProgram, OutputForm | None]:
        """
        Return the program of the forward pass for a batch, and the structure of the output if it returns the model's.

        Raises:
            PlanError: on every rank, if the batch cannot be planned, or the number of programs would exceed `most`.
        """
        call, of_model = ("evaluate()", False) if returns == "loss" else ("predict()", True)
        if isinstance(batch, LocalRows) and batch.count not in (None, self.form.rows):
            raise PlanError(f"{call} was given this rank's rows of a batch of {batch.count}: give it the global batch")
        given = self.form.example if isinstance(batch, LocalRows) else batch
        shapes = self.form.shapes(call, given, of_model=of_model)
        plain = self.form.plain(given, of_model=of_model)
        key = (returns, shapes, repr(plain))
        if key not in self._forward:
            if len(self._forward) >= self.most:
                raise PlanError(
                    f"{call} was given batches of more than {self.most} shapes, the latest {shapes_text(shapes)}: each "
                    "needs a program; pad to a few lengths, or raise step.most_programs"
                )
            verify_alike(f"shapes of batches for {call}", key)
            like = self.form.like(shapes, plain)
            what = f"the forward pass for {shapes_text(shapes)}"
            self._forward[key] = self._made(what, lambda planner: planner.forward(returns, like))
        return self._forward[key]

    def _made(self, what: str, plan: Callable[[Planner], Made]) -> tuple[RankProgram, OutputForm | None]:
        def made() -> Made:
            assert self.planner is not None, "it is on rank 0"
            devices = [self.connections.device] if self.connections.device.type == "cuda" else []
            with torch.random.fork_rng(devices), self.opened():
                return plan(self.planner)

        def failure(error: Exception) -> PlanError:
            failed = PlanError(f"{what}: {error}")
            failed.__cause__ = error
            return failed

        text, form = made_by_rank_0(made, failure)
        stages = self.connections.load(text, f"<{what}>")
        return self.executor.adopt(stages, self.connections.connect(stages)), form
