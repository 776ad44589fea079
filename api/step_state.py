"""`StepState`: reads, replaces, saves and loads the weights and states of a step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, overload

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..runtime.checkpoint_ranks import CheckpointError
from ..runtime.executor import Executor
from ..runtime.groups import job_rank
from ..runtime.step_checkpoints import Checkpoints, Restored
from .loading import ShareLoader
from .optimizer_handle import OptimizerHandle
from .plan_record import RECORD, PlanRecord
from .sharded_state import Sharded, ShardedState

LOG = logging.getLogger("shardwright")


class StepState:
    """
    The weights and states of a step on this rank. Every method has to be called on all ranks.

    Args:
        executor: holds this rank's part of all values.
        device_mesh: the user's DeviceMesh, if the plan was made for one.
        record: the record of the plan, which checkpoints of rank 0 contain (`plan_record`).

    `optimizer` has the learning rate of the next step, and schedulers of `torch.optim.lr_scheduler` accept it; without
    updates in the program it is None.
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
        """The rank of this process in the job."""
        return job_rank()

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """
        The mesh of the plan (of this rank's stage in a pipeline) with its axes, or None without a process group.

        If a DeviceMesh was given as `cluster` and the plan uses its axes, it is that object.
        """
        return self._sharded.device_mesh

    def named_parameters(self) -> Iterator[tuple[str, Sharded]]:
        """
        Return the parameters (of this rank's stage in a pipeline) by their names in the model.

        Each is a `DTensor` over `device_mesh`, or a `LocalShard` if no DTensor can express its sharding.

        They are views of the step's memory, which the next step overwrites or replaces: call this again after it.
        """
        return self._sharded.named_parameters()

    def parameters(self) -> Iterator[Sharded]:
        """Return the values of `named_parameters`."""
        return (value for _, value in self.named_parameters())

    @overload
    def state_dict(self) -> dict[str, torch.Tensor]: ...
    @overload
    def state_dict(self, *, sharded: bool) -> dict[str, Any]: ...
    def state_dict(self, *, sharded: bool = False) -> dict[str, Any]:
        """
        Return parameters and persistent buffers as full tensors, which the single-device model can load.

        Args:
            sharded: whether each rank gets only its own parts, as in `named_parameters`, without gathering: the form
                that `torch.distributed.checkpoint` saves and loads.
        """
        return self._sharded.weights() if sharded else self._executor.state_dict()

    def optimizer_state_dict(self) -> dict[str, Any]:
        """
        Return the states of the optimizer, by parameter and torch's name of the state, and its groups of parameters.

        `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` returns the same form. As with torch's own
        `state_dict()`, and as in `named_parameters`, the tensors are the step's own memory: copy them to keep them.
        """
        return self._sharded.optimizer_state(self.optimizer.rates if self.optimizer is not None else ())

    def load_state_dict(self, state: Mapping[str, Sharded]) -> None:
        """
        Replace all parameters and persistent buffers.

        The states of the optimizer stay as they are, although they may be averages over steps with the previous
        weights. After the first step, a warning is logged about this.

        Args:
            state: full tensors by the names of the model, the same on all ranks, or the result of
                `state_dict(sharded=True)`.

        Raises:
            PlanError: a value is missing, unknown or of another shape, or the ranks were given different weights.
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
        Replace the states of the optimizer and the learning rates.

        Args:
            state: the result of `optimizer_state_dict`, with full or sharded tensors; or the `state_dict()` of a torch
                optimizer with the same groups (of a run on one device, for example), the same on all ranks.

        Raises:
            PlanError: a state is missing or of another shape, or the ranks were given different ones.
        """
        self._sharded.load_optimizer(state)
        if self.optimizer is not None:
            for group, given in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
                group["lr"] = float(given["lr"])

    @property
    def steps(self) -> int:
        """The number of steps so far, including the steps before a loaded checkpoint."""
        return self._executor.steps

    def save(
        self, folder: str | Path, *, extra: object = None, keep: int | None = 2, asynchronous: bool = False
    ) -> Path:
        """
        Write a checkpoint: parameters, buffers, states of the optimizer, the number of steps, the seed, the learning
        rates, and the positions of the loaders that `loader` made.

        Every rank writes its parts. The checkpoint appears in its folder, ``step-00000042``, once it is complete.

        Args:
            folder: a folder on a disk that all ranks share.
            extra: additional data to keep, such as a scheduler's `state_dict()`: numbers, strings, tensors, and lists
                and dicts of them. Only the data of rank 0 is kept.
            keep: the number of newest checkpoints that stay in the folder; None keeps all.
            asynchronous: whether to copy the values and write them while training continues; the next `save`, `load` or
                `wait_saved` waits for the write.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointError: it could not be written, on any rank.
        """
        rates = self.optimizer.rates if self.optimizer is not None else ()
        loaders = [each.state_dict() for each in self._loaders]
        return self._checkpoints.save(Path(folder), rates, loaders, extra=extra, keep=keep, asynchronous=asynchronous)

    def wait_saved(self) -> None:
        """Wait for the asynchronous writes of `save`; raise CheckpointError if one failed."""
        self._checkpoints.wait()

    def load(self, folder: str | Path, *, optimizer: bool = True) -> Restored:
        """
        Restore the newest intact checkpoint in a folder, of any plan on any number of ranks.

        It restores everything that `save` lists. The n-th loader that `loader` makes, before or after this call,
        continues at the n-th saved position.

        Args:
            folder: the folder that was given to `save`.
            optimizer: whether to restore states of the optimizer and learning rates; otherwise they stay as they are.

        Returns:
            The number of steps, and the extra data that was given to `save`.

        Raises:
            CheckpointError: no checkpoint is intact, or it has another model or optimizer; nothing was changed.
        """
        if (restored := self.resume(folder, optimizer=optimizer)) is None:
            raise CheckpointError(f"{folder} has no checkpoint; step.save(folder) writes one")
        return restored

    def resume(self, folder: str | Path, *, optimizer: bool = True) -> Restored | None:
        """Load as `load` does, but return None if the folder has no checkpoint yet: for scripts that are restarted."""
        checkpoint = self._checkpoints.load(Path(folder), with_optimizer=optimizer)
        if checkpoint is None:
            return None
        notes = checkpoint.notes
        if self.optimizer is not None and optimizer:
            for group, rate in zip(self.optimizer.param_groups, notes.rates, strict=True):
                group["lr"] = rate
        self._positions, loaders = list(notes.loaders), self._loaders
        self._loaders = []
        for loader in loaders:
            self._add_loader(loader)
        return Restored(notes.step, checkpoint.extra, checkpoint.path)

    def gather(self, name: str) -> torch.Tensor:
        """
        Return a parameter or buffer as a full tensor.

        Raises:
            KeyError: the plan has no parameter or buffer of that name.
        """
        for value in (value for plan in self._executor.plans for value in plan.inputs):
            if value.role in ("param", "buffer") and name in (value.name, *value.tied):
                return self._executor.gather(value)
        raise KeyError(f"the plan has no parameter or buffer {name!r}")

    def _add_loader(self, loader: ShareLoader) -> None:
        """Register a loader whose position is saved from now on, and move it to its restored position."""
        self._loaders.append(loader)
        if self._positions:
            loader.load_state_dict(self._positions.pop(0))
