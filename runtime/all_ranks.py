"""Values of all ranks of the job, exchanged in host memory."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar
from weakref import ReferenceType, ref

import torch.distributed as dist

from .faults import ACTIVITY, Patience
from .groups import world_size
from .rank_devices import backends

Given = TypeVar("Given")


def of_all_ranks(mine: Given, what: str = "the comparison of the ranks") -> list[Given]:
    """
    Gather one value from every rank, in rank order; every rank must call this.

    Args:
        what: the exchange, for messages about a rank that does not take part.
    """
    if world_size() == 1:
        return [mine]
    everyone: list[Any] = [None] * world_size()
    ACTIVITY.wait(what, lambda: dist.all_gather_object(everyone, mine, group=host_group()))
    return everyone


def from_rank_0(mine: Given, *, what: str = "a broadcast from rank 0", patient: Patience = "") -> Given:
    """
    Broadcast the value of rank 0 and return it; every rank must call this.

    Args:
        what: the exchange, for messages about a rank that does not take part.
        patient: bound of the wait, for a value that rank 0 may take long to compute.
    """
    if world_size() == 1:
        return mine
    shared = [mine]
    send = partial(dist.broadcast_object_list, shared, src=0, group=host_group())
    ACTIVITY.wait(what, send, patient=patient)
    return shared[0]


_made: tuple[ReferenceType[dist.ProcessGroup], ReferenceType[dist.ProcessGroup]] | None = None
"""The world group and the gloo group created for it, as weak references; torch keeps both as long as the job lasts."""


def host_group() -> dist.ProcessGroup | None:
    """
    Return a group of all ranks for objects in host memory: the world group if it has gloo, otherwise a new gloo group.
    NCCL would hold the GPU while rank 0 plans, and would abort the job if planning took longer than its timeout.
    """
    global _made
    world = dist.group.WORLD
    if world is None or backends().get("cpu") == "gloo":
        return world
    if _made is None or _made[0]() is not world:
        group = ACTIVITY.wait("a group of gloo", lambda: dist.new_group(backend="gloo", timeout=ACTIVITY.timeout))
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        _made = ref(world), ref(group)
    return _made[1]()
