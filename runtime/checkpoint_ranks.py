"""The ranks that write or read a checkpoint together: an error on one is raised on all, and late ranks are named."""

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
    """A checkpoint that cannot be written or read; the message names the file, and what to do."""


@dataclass
class CheckpointWait:
    """What a rank that writes or reads a checkpoint with others waits for; empty if it does not wait."""

    waits: bool = False

    def __str__(self) -> str:
        return "the checkpoint that all ranks write or read" if self.waits else ""

    @contextmanager
    def of_others(self, waits: bool = True) -> Generator[None, None, None]:
        """Inside, this rank waits; or does not."""
        before, self.waits = self.waits, waits
        try:
            yield
        finally:
            self.waits = before


@dataclass(frozen=True)
class Ranks:
    """
    The ranks that write or read together.

    What they do first, when nobody is at work with a file yet, they do with `patient=""`: a rank that does not come is
    found as soon as one that does not come to a step.

    Args:
        group: of gloo, which this alone uses; None without a process group.
        turn: whether this one is at work.
    """

    group: dist.ProcessGroup | None
    rank: int = 0
    count: int = 1
    turn: CheckpointWait = field(default_factory=CheckpointWait)

    @staticmethod
    def connect() -> Ranks:
        """All ranks of the job; every rank must call this."""
        if not dist.is_initialized():
            return Ranks(None)
        group = ACTIVITY.wait("a checkpoint", lambda: dist.new_group(backend="gloo", timeout=ACTIVITY.timeout))
        assert isinstance(group, dist.ProcessGroup), "every rank is of the group"
        return Ranks(group, dist.get_rank(), dist.get_world_size())

    def gather(self, mine: Returned, patient: Patience = "save") -> list[Returned]:
        """By rank, what each gives."""
        if self.group is None:
            return [mine]
        everyone: list[Any] = [None] * self.count
        self.wait(lambda: dist.all_gather_object(everyone, mine, group=self.group), patient)
        return everyone

    def wait(self, done: Callable[[], Returned], patient: Patience = "save") -> Returned:
        """What `done` returns, which waits for other ranks."""
        with self.turn.of_others():
            # What a thread beside training waits for is no place where a rank is.
            if threading.current_thread() is not threading.main_thread():
                return done()
            return ACTIVITY.wait(self.turn, done, patient=patient)

    def agree(self, what: Callable[[], Returned], patient: Patience = "save") -> Returned:
        """
        Do something on every rank.

        Raises:
            CheckpointError: on all ranks, where it failed on one.
        """
        # Of whatever kind the failure is: the other ranks wait for this one.
        try:
            done, message = what(), ""
        except CheckpointError as error:
            done, message = None, str(error)
        except Exception as error:
            done, message = None, description(error)
        told = self.gather(message, patient)
        if failed := [(rank, message) for rank, message in enumerate(told) if message]:
            rank, message = failed[0]
            raise CheckpointError(f"rank {rank}: {message}" if self.count > 1 else message)
        return cast("Returned", done)


def description(error: BaseException) -> str:
    """What an error is called, and its message."""
    return f"{type(error).__name__}: {error}"
