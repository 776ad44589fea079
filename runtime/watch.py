"""
The watch: a rank that dies ends the job, with one message that names it, whatever the others wait for.

Every rank listens to the next one, around a ring, on connections of their own. A connection that breaks without a
word means that the rank at its other end is dead: whoever listens to it says so and ends, after sending word to the
rank that listens to him, which ends too and passes the word on. Nobody else says anything. A rank that fails with a
message of its own sends the same word, and one that is done says goodbye.

Without it a pipeline would hang: the stages next to a dead one notice, but a rank that waits for a living one, which
waits for a living one, does not.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

LOG = logging.getLogger("shardwright")

_GOODBYE, _END = 0, 1
_FOR_EVER = timedelta(days=365)
_SECONDS_FOR_WORD = 5.0
_GRACE_SECONDS = 0.5


class Watch:
    """
    Watches over a job; every rank must make one, at the same point among the groups of all ranks.

    Args:
        name: of the program, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name, self._rank, self._world = name, dist.get_rank(), dist.get_world_size()
        group = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self._group, self._word = group, torch.tensor([_GOODBYE])
        self._next, self._before = (self._rank + 1) % self._world, (self._rank - 1) % self._world
        self._ending = False
        self._listener = threading.Thread(target=self._listen, name="shardwright watch", daemon=True)
        if self._world > 1:
            self._coming = self._group.recv([self._word], self._next, 0)
            self._listener.start()

    def _listen(self) -> None:
        try:
            self._coming.wait()
        except RuntimeError:
            if not self._ending:
                self._say(f"rank {self._next} is gone: it was killed, or its machine failed; this ends the job")
            self._word.fill_(_END)
        if self._word.item() == _END:
            self._tell(_END)
            # A rank that fails of itself at the same time has a message of its own.
            time.sleep(_GRACE_SECONDS)
            _exit()

    def _say(self, message: str) -> None:
        LOG.critical("%s: %s", self._name, message)

    def _tell(self, word: int) -> None:
        """Send a word to the rank that listens to this one, if that is still there."""
        try:
            self._group.send([torch.tensor([word])], self._before, 0).wait()
        except RuntimeError:
            return

    def end(self, *, lost_peer: bool) -> NoReturn:
        """
        End this process and the job: this rank has failed, and has said why unless it was for want of another.

        Args:
            lost_peer: whether another rank seems to be gone. There will be word of that, which ends this process;
                without such word this rank says what it knows.
        """
        if lost_peer:
            self._listener.join(_SECONDS_FOR_WORD)
            self._say(f"rank {self._rank}: lost another rank, whose own message says why")
        self._ending = True
        if self._world > 1:
            self._tell(_END)
            # The word comes around when all others have it.
            self._listener.join(_SECONDS_FOR_WORD)
        _exit()

    def close(self) -> None:
        """Say goodbye, and wait until the rank that is listened to does."""
        if self._world > 1:
            self._tell(_GOODBYE)
            self._listener.join()


def _exit() -> NoReturn:
    """End the process at once: threads that wait for a message could not be ended otherwise."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
