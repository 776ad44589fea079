"""A profile during which a rank is killed."""

import os
import signal
from typing import Any

import torch
import torch.distributed as dist

from shardwright.runtime.communicator import Communicator
from shardwright.runtime.profile.journal import Journal
from shardwright.runtime.profile.session import ProfileRequest, profile_here


def profile_and_die(request: ProfileRequest) -> Journal:
    """Profile; rank 1 is killed at the first all-to-all."""
    all_to_all = Communicator.all_to_all

    def die(*args: Any, **options: Any) -> torch.Tensor:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return all_to_all(*args, **options)

    Communicator.all_to_all = die
    return profile_here(request)
