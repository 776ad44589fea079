"""`step.save` and `step.load`: checkpoints of a step's state, which any other plan of the model can load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import EXTRA, CompleteCheckpoint, Notes, newest_whole, packed, read, write
from .checkpoint_ranks import CheckpointError, Ranks
from .executor import Executor
from .faults import ACTIVITY
from .plan import LocalShard, Plan, Value

_NAMES: dict[str, Callable[[Value], tuple[str, ...]]] = {
    "param": lambda value: ("model", value.name),
    "buffer": lambda value: ("buffers", value.name),
    "state": lambda value: ("optimizer", value.name, value.state),
    "step_count": lambda _: ("optimizer", "step_count"),
}
"""The parts of a value's name in a checkpoint, by role; a state of the step itself has no parameter."""

_OF_OPTIMIZER = "optimizer."
_NONE: Mapping[str, bytes] = {}


@dataclass(frozen=True)
class Restored:
    """
    A loaded checkpoint.

    Args:
        step: the number of finished steps.
        extra: the object that was passed to `save`.
    """

    step: int
    extra: Any
    path: Path


class Checkpoints:
    """
    Saves and loads the state of an executor; every rank must call each method.

    Args:
        files: additional files of checkpoints, by name; only the files of rank 0 are written.
    """

    def __init__(self, executor: Executor, files: Mapping[str, bytes] = _NONE) -> None:
        self._executor, self._files = executor, files
        self._made: Ranks | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[Path] | None = None

    def save(
        self,
        folder: Path,
        rates: Sequence[float],
        loaders: Sequence[Mapping[str, int]],
        *,
        extra: object,
        keep: int | None,
        asynchronous: bool,
    ) -> Path:
        """See `DistributedStep.save`."""
        self.wait()
        if keep is not None and keep < 1:
            raise CheckpointError(f"save() was given keep={keep}, expected 1 or more, or None for all")
        executor = self._executor
        notes = Notes(executor.steps, executor.seed, tuple(rates), tuple(loaders))
        parts = self._parts(with_optimizer=True)
        files = {**self._files, EXTRA: self._ranks.agree(lambda: packed(extra), patient="")}
        if not asynchronous:
            return write(folder, parts, notes, files, keep, self._ranks)
        copies = {
            name: LocalShard(part.local.detach().to("cpu", copy=True), part.shape, part.offsets)
            for name, part in parts.items()
        }
        self._writer = self._writer or ThreadPoolExecutor(1, "shardwright-checkpoint")
        self._writing = self._writer.submit(write, folder, copies, notes, files, keep, self._ranks)
        return folder / notes.name

    def wait(self) -> None:
        """Wait for the asynchronous write; raise a CheckpointError if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            ACTIVITY.wait(self._ranks.turn, writing.result, patient="save")

    def load(self, folder: Path, *, with_optimizer: bool) -> CompleteCheckpoint | None:
        """See `DistributedStep.load`; return None if the folder has no checkpoint."""
        self.wait()
        whole = newest_whole(folder, self._ranks)
        if whole is None:
            return None
        parts = self._parts(with_optimizer=with_optimizer)
        self._ranks.agree(lambda: self._verify(whole, with_optimizer=with_optimizer))
        read(whole, parts, self._ranks)
        self._executor.resume(whole.notes.step, whole.notes.seed)
        return whole

    @property
    def _ranks(self) -> Ranks:
        if self._made is None:
            self._made = Ranks.connect()
        return self._made

    def _parts(self, *, with_optimizer: bool) -> dict[str, LocalShard]:
        executor = self._executor
        shards: dict[str, LocalShard] = {}
        for name, value in _lasting(executor.plan, with_optimizer=with_optimizer):
            if value.spread.partial:
                raise CheckpointError(f"{name} is kept as partial sums, which cannot be saved in a checkpoint")
            slices = value.slices(executor.plan.mesh, executor.comm.rank)
            shards[name] = LocalShard(executor.local(value), value.shape, tuple(dim.start for dim in slices))
        return shards

    def _verify(self, whole: CompleteCheckpoint, *, with_optimizer: bool) -> None:
        """Raise a CheckpointError if the checkpoint does not fit the step."""
        plans = self._executor.plans
        groups, rates = len(plans[0].parameter_groups), len(whole.notes.rates)
        if with_optimizer and rates != groups:
            mismatch = f"{whole.path} has the rates of {rates} groups of parameters, and the step has {groups}"
            raise CheckpointError(f"{mismatch}{_remedy(_OF_OPTIMIZER)}")
        expected = {name: value for plan in plans for name, value in _lasting(plan, with_optimizer=with_optimizer)}
        for name, value in expected.items():
            if name not in whole.tensors:
                raise CheckpointError(f"{whole.path} has no {name}{_remedy(name)}")
            shape, dtype = whole.tensors[name]
            if shape != (value.shape or (1,)) or dtype != value.torch_dtype:
                raise CheckpointError(
                    f"{whole.path} has {name} as {dtype} of {list(shape)}, and the step as {value.torch_dtype} of "
                    f"{list(value.shape)}{_remedy(name)}"
                )
        for name in whole.tensors:
            if name not in expected and (with_optimizer or not name.startswith(_OF_OPTIMIZER)):
                raise CheckpointError(f"{whole.path} has {name}, and the step does not{_remedy(name)}")


def _remedy(name: str) -> str:
    if name.startswith(_OF_OPTIMIZER):
        return ": it was saved with another optimizer; use that one, or load the weights alone, by optimizer=False"
    return ": it was saved from another model; build that model, or save to another folder"


def _lasting(plan: Plan, *, with_optimizer: bool) -> Iterator[tuple[str, Value]]:
    """Yield the persistent values of a stage, with their names in a checkpoint."""
    for value in plan.inputs:
        if value.role in _NAMES:
            name = ".".join(filter(None, _NAMES[value.role](value)))
            if with_optimizer or not name.startswith(_OF_OPTIMIZER):
                yield name, value
