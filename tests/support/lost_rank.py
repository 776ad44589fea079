"""A rank that is killed while it is being profiled."""

import os
import signal

import torch.distributed as dist

from shardwright.runtime.profile.clock import Clock
from shardwright.runtime.profile.journal import Journal
from shardwright.runtime.profile.session import Request, profile_here


def profile_and_die(request: Request, barriers: int) -> Journal:
    """Profile; rank 1 is killed at the barrier of that number."""
    met, wait = 0, Clock.wait_for_all

    def wait_or_die(self: Clock) -> None:
        nonlocal met
        met += 1
        if met == barriers and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        wait(self)

    Clock.wait_for_all = wait_or_die
    return profile_here(request)
