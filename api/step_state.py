"""`StepState`: what a step holds on this rank, read, replaced, saved and loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, overload

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..runtime.checkpoint_ranks import CheckpointError
from ..runtime.executor import Executor
from ..runtime.step_checkpoints import Checkpoints, Restored
from .loading import ShareLoader
from .optimizer_handle import OptimizerHandle
from .plan_record import RECORD, PlanRecord
from .sharded_state import Sharded, ShardedState

LOG = logging.getLogger("shardwright")


class StepState:
    """
    What a step holds on this rank. Every method has to be called on all ranks.

    Args:
        executor: holds this rank's part of everything.
        device_mesh: the one that was planned for, if one was given.
        record: of the plan, by which checkpoints of rank 0 say how it was made (`plan_record`).

    `optimizer` has the learning rate of the next step: schedulers of `torch.optim.lr_scheduler` take it. None where the
    program updates nothing.
    """

    def __init__(
        self, executor: Executor, device_mesh: DeviceMesh | None = None, record: PlanRecord | None = None
    ) -> None:
        self._executor = executor
        groups = executor.plan.parameter_groups
        self.optimizer = OptimizerHandle(groups) if groups else None
        files = {RECORD: record.text().encode()} if record is not None else {}
        self._checkpoints = Checkpoints(executor, files)
        self._loaders: list[ShareLoader] = []
        self._positions: list[Mapping[str, int]] = []
        self._sharded = ShardedState(executor, device_mesh)

    @property
    def rank(self) -> int:
        """Of this process in the job."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """
        The mesh of the plan with its axes, in a pipeline that of this rank's stage; None without a process group.

        It is the object that was given as `cluster`, where the plan is on its axes.
        """
        return self._sharded.device_mesh

    def named_parameters(self) -> Iterator[tuple[str, Sharded]]:
        """
        The parameters by their names in the model, in a pipeline those of this rank's stage.

        Each is a `DTensor` over `device_mesh`, or a `LocalShard` where no DTensor can express its sharding.

        They are views of the step's own memory, which the next step changes or abandons: ask again after it.
        """
        return self._sharded.named_parameters()

    def parameters(self) -> Iterator[Sharded]:
        """Those of `named_parameters`."""
        return (value for _, value in self.named_parameters())

    @overload
    def state_dict(self) -> dict[str, torch.Tensor]: ...
    @overload
    def state_dict(self, *, sharded: bool) -> dict[str, Any]: ...
    def state_dict(self, *, sharded: bool = False) -> dict[str, Any]:
        """
        Parameters and persistent buffers as full tensors, under the names of the single-device model, which can load
        them.

        Args:
            sharded: nothing is gathered, and each rank gets its parts, as `named_parameters` gives them: what
                `torch.distributed.checkpoint` saves, and loads into.
        """
        return self._sharded.weights() if sharded else self._executor.state_dict()

    def optimizer_state_dict(self) -> dict[str, Any]:
        """
        The states of the optimizer, by parameter and torch's name of the state, and its groups of parameters.

        `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` has the same form. As with torch's own
        `state_dict()`, and as in `named_parameters`, the tensors are the step's own memory: copy them to keep them.
        """
        return self._sharded.optimizer_state(self.optimizer.rates if self.optimizer is not None else ())

    def load_state_dict(self, state: Mapping[str, Sharded]) -> None:
        """
        Take over weights: parameters and persistent buffers, all of them.

        The states of the optimizer stay as they are, averages over the weights before among them. Once steps have been
        made, a warning is logged that says so.

        Args:
            state: by the names of the model, full tensors, the same on all ranks, or what `state_dict(sharded=True)`
                gives.

        Raises:
            PlanError: anything is missing, unknown or of another shape, or the ranks were given different weights.
        """
        self._sharded.load_weights(state)
        if self._executor.steps and self.rank == 0 and any(each.role == "state" for each in self._executor.plan.inputs):
            LOG.warning(
                "load_state_dict() replaced the weights after %d steps; the states of the optimizer still belong to "
                "the previous weights",
                self._executor.steps,
            )

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Take over the states of the optimizer and the learning rates.

        Args:
            state: what `optimizer_state_dict` gives, with full tensors or sharded ones; or the `state_dict()` of an
                optimizer of torch with the same groups, that of one device, say, the same on all ranks.

        Raises:
            PlanError: a state is missing or of another shape, or the ranks were given different ones.
        """
        self._sharded.load_optimizer(state)
        if self.optimizer is not None:
            for group, given in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
                group["lr"] = float(given["lr"])

    @property
    def steps(self) -> int:
        """How many steps were made, those before what was loaded among them."""
        return self._executor.steps

    def save(
        self, folder: str | Path, *, extra: object = None, keep: int | None = 2, asynchronous: bool = False
    ) -> Path:
        """
        Write a checkpoint: parameters, buffers, states of the optimizer, the number of steps, the seed, the learning
        rates, and the positions of the loaders that `loader` made.

        Every rank writes its parts. The checkpoint is in its folder, ``step-00000042``, once all of it is on the disk,
        or not at all.

        Args:
            folder: on a disk that all ranks share.
            extra: what else is to be kept, a scheduler's `state_dict()`, say: numbers, strings, tensors, and lists and
                dicts of them. That of rank 0 is.
            keep: how many checkpoints stay in the folder, the newest; None: all.
            asynchronous: copy what is held, and write it while training continues; the next `save`, `load` or
                `wait_saved` waits for that.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointError: it could not be written, on any rank.
        """
        rates = self.optimizer.rates if self.optimizer is not None else ()
        loaders = [each.state_dict() for each in self._loaders]
        return self._checkpoints.save(Path(folder), rates, loaders, extra=extra, keep=keep, asynchronous=asynchronous)

    def wait_saved(self) -> None:
        """Wait for the asynchronous writes of `save`; CheckpointError if one failed."""
        self._checkpoints.wait()

    def load(self, folder: str | Path, *, optimizer: bool = True) -> Restored:
        """
        Take over the newest intact checkpoint in a folder, of any plan on any number of ranks.

        What `save` lists is as it was, learning rates and positions of loaders too, in the order in which they were
        made, now or later.

        Args:
            folder: what was given to `save`.
            optimizer: whether states of the optimizer and learning rates are taken; if not, they stay as they are.

        Returns:
            The number of steps, and what was given to `save` besides.

        Raises:
            CheckpointError: none is intact, or it is of another model or optimizer; then nothing was changed.
        """
        if (found := self.resume(folder, optimizer=optimizer)) is None:
            raise CheckpointError(f"{folder} has no checkpoint; step.save(folder) writes one")
        return found

    def resume(self, folder: str | Path, *, optimizer: bool = True) -> Restored | None:
        """As `load`, and None where the folder has no checkpoint yet: for scripts that are started again."""
        found = self._checkpoints.load(Path(folder), with_optimizer=optimizer)
        if found is None:
            return None
        notes = found.notes
        if self.optimizer is not None and optimizer:
            for group, rate in zip(self.optimizer.param_groups, notes.rates, strict=True):
                group["lr"] = rate
        self._positions, loaders = list(notes.loaders), self._loaders
        self._loaders = []
        for loader in loaders:
            self._add_loader(loader)
        return Restored(notes.step, found.extra, found.path)

    def gather(self, name: str) -> torch.Tensor:
        """
        A parameter or buffer, as a full tensor.

        Raises:
            KeyError: the plan has none of that name.
        """
        for value in (value for plan in self._executor.plans for value in plan.inputs):
            if value.role in ("param", "buffer") and name in (value.name, *value.tied):
                return self._executor.gather(value)
        raise KeyError(f"the plan has no parameter or buffer {name!r}")

    def _add_loader(self, loader: ShareLoader) -> None:
        """Save the position of a loader from now on; it resumes at the position that was saved for it."""
        self._loaders.append(loader)
        if self._positions:
            loader.load_state_dict(self._positions.pop(0))
