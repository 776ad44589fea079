"""The ranks that write or read a checkpoint together: all ranks raise the error of any rank, and name late ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch.distributed as dist

from .faults import ACTIVITY, Patience

Returned = TypeVar("Returned")

METADATA = ".metadata"
"""The file of a checkpoint that describes its tensors."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message names the file, and the remedy."""


@dataclass
class CheckpointWait:
    """The reason why a rank that writes or reads a checkpoint waits; an empty string if it does not wait."""

    waits: bool = False

    def __str__(self) -> str:
        return "the checkpoint that all ranks write or read" if self.waits else ""

    @contextmanager
    def of_others(self, waits: bool = True) -> Generator[None, None, None]:
        """Mark this rank as waiting for other ranks, or with `waits=False` as working, inside the context."""
        before, self.waits = self.waits, waits
        try:
            yield
        finally:
            self.waits = before


@dataclass(frozen=True)
class Ranks:
    """
    The ranks that write or read a checkpoint together.

    They use `patient=""` for their first exchange, before any rank works with a file: a missing rank is then detected
    as soon as in a training step.

    Args:
        group: gloo group that only checkpoints use, or None without a process group.
        turn: state that tells the watch whether this rank works or waits.
    """

    group: dist.ProcessGroup | None
    rank: int = 0
    count: int = 1
    turn: CheckpointWait = field(default_factory=CheckpointWait)

    @staticmethod
    def connect() -> Ranks:
        """Create the group of all ranks of the job; every rank must call this."""
        if not dist.is_initialized():
            return Ranks(None)
        group = ACTIVITY.wait("a checkpoint", lambda: dist.new_group(backend="gloo", timeout=ACTIVITY.timeout))
        assert isinstance(group, dist.ProcessGroup), "every rank is of the group"
        return Ranks(group, dist.get_rank(), dist.get_world_size())

    def gather(self, mine: Returned, patient: Patience = "save") -> list[Returned]:
        """Gather one value from every rank, in rank order."""
        if self.group is None:
            return [mine]
        everyone: list[Any] = [None] * self.count
        self.wait(lambda: dist.all_gather_object(everyone, mine, group=self.group), patient)
        return everyone

    def wait(self, done: Callable[[], Returned], patient: Patience = "save") -> Returned:
        """Return the result of `done`, which waits for other ranks."""
        with self.turn.of_others():
            # The watch reports only waits of the main thread, not of a thread that saves during training.
            if threading.current_thread() is not threading.main_thread():
                return done()
            return ACTIVITY.wait(self.turn, done, patient=patient)

    def agree(self, what: Callable[[], Returned], patient: Patience = "save") -> Returned:
        """
        Run a function on every rank, and return its result on this rank.

        Raises:
            CheckpointError: on all ranks, if it failed on any.
        """
        # Catch every kind of failure: the other ranks wait for this rank's answer.
        try:
            done, message = what(), ""
        except CheckpointError as error:
            done, message = None, str(error)
        except Exception as error:
            done, message = None, description(error)
        messages = self.gather(message, patient)
        if failed := [(rank, message) for rank, message in enumerate(messages) if message]:
            rank, message = failed[0]
            raise CheckpointError(f"rank {rank}: {message}" if self.count > 1 else message)
        return cast("Returned", done)


def description(error: BaseException) -> str:
    """Return the class name and the message of an error."""
    return f"{type(error).__name__}: {error}"
