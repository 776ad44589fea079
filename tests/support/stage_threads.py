"""The stages of a program as threads of one process, with transfers that check their preconditions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from rank_threads import Meeting, ThreadCommunicator

from shardwright.ir.unit_tasks import Task


class Post:
    """The values that all ranks of a job have sent so far, by transfer, part and sender."""

    def __init__(self, transfers: Sequence[Any]) -> None:
        self.transfers = {transfer.label: transfer for transfer in transfers}
        self.sent: dict[tuple[str, int, int], torch.Tensor] = {}
        self.arrived = threading.Condition()

    def take(self, label: str, task: Task) -> torch.Tensor:
        """Wait until the sender of a task has sent its local value, and return it."""
        key = (label, task.part, task.sender)
        with self.arrived:
            assert self.arrived.wait_for(lambda: key in self.sent, timeout=20), f"nobody sends {key}"
        return self.sent[key]


class StageCommunicator(ThreadCommunicator):
    """
    The communicator of one rank of a stage: `rank` is its number in the mesh, `job_rank` its number in the job.

    A sent value is passed on without a copy: a program that overwrites it later sends wrong numbers.
    """

    def __init__(self, meeting: Meeting, post: Post, rank: int, job_rank: int) -> None:
        super().__init__(meeting, rank)
        self.post, self.job_rank = post, job_rank

    def send(self, label: str, part: int, value: torch.Tensor) -> None:
        transfer = self.post.transfers[label]
        box = transfer.source.slices(transfer.shape, self.job_rank, part)
        assert tuple(value.shape) == tuple(each.stop - each.start for each in box)
        with self.post.arrived:
            key = (label, part, self.job_rank)
            assert key not in self.post.sent, f"{key} is sent twice"
            self.post.sent[key] = value
            self.post.arrived.notify_all()

    def receive(self, label: str, part: int) -> Any:
        return label, part

    def arrived(self, coming: Any) -> torch.Tensor:
        label, part = coming
        transfer = self.post.transfers[label]
        mine = transfer.target.slices(transfer.shape, self.job_rank, part)
        whole = torch.full(transfer.shape, 99, dtype=getattr(torch, transfer.dtype))
        for task in transfer.tasks:
            if task.part == part and self.job_rank in task.receivers:
                held = transfer.source.slices(transfer.shape, task.sender, part)
                inside = tuple(slice(b - h.start, e - h.start) for (b, e), h in zip(task.slice, held, strict=True))
                sent = self.post.take(label, task)[inside]
                whole[tuple(slice(begin, end) for begin, end in task.slice)] = sent
        return whole[mine].clone()
