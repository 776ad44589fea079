"""The verdict that ends a job: the store takes one, and its message is printed before any rank ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store

from .judge import Verdict

VERDICT = "verdict"
"""What holds the verdict, in the store; empty while there is none."""

_REPORTER, _REPORTED, _ENDS = "reporter", "reported", "ends"
KEYS = (VERDICT, _REPORTER, _REPORTED)
"""What is in the store once `Verdicts.open` was called."""

_POLL_SECONDS = 0.02


@dataclass
class Verdicts:
    """
    The verdict of a job, as one rank sees it: the store takes the first.

    A rank ends for a verdict once its message is written. Whoever found it writes the message and says so in the store;
    where that rank dies before (another may have killed it as the one at fault), the next writes it.

    Args:
        store: of the job.
        rank: this one.
        patience: seconds that writing a message may take a rank that is not known to be dead.
        is_dead: of a rank, whether it is known to be.
    """

    store: Store
    rank: int
    patience: float
    is_dead: Callable[[int], bool]

    def open(self) -> None:
        """Begin a job without a verdict; one rank must call this before any other method is used."""
        for key in KEYS:
            self.store.set(key, "")

    def claim(self, verdict: Verdict, tell: Callable[[Verdict], None]) -> Verdict:
        """
        Make a verdict that of the job, unless it has one; its message is printed when this returns.

        Args:
            tell: writes the message of a verdict; of this one or of the one that stands.

        Returns:
            The verdict that stands.
        """
        mine = json.dumps({"by": self.rank, **asdict(verdict)})
        if self.store.compare_set(VERDICT, "", mine).decode() == mine:
            self._write(verdict, tell)
            return verdict
        return self.await_told(tell)

    def await_told(self, tell: Callable[[Verdict], None]) -> Verdict:
        """
        Wait until the message of the present verdict is printed, and print it if no other rank will.

        Returns:
            The verdict.
        """
        found, reported = self.store.multi_get([VERDICT, _REPORTED])
        entry = json.loads(found)
        teller, verdict = entry["by"], Verdict(tuple(entry["ranks"]), entry["text"])
        before, deadline = "", time.monotonic() + self.patience
        while not reported:
            if self.is_dead(teller) or time.monotonic() > deadline:
                taken = self.store.compare_set(_REPORTER, before, str(self.rank)).decode()
                if taken == str(self.rank):
                    self._write(verdict, tell)
                    break
                before, teller, deadline = taken, int(taken), time.monotonic() + self.patience
            time.sleep(_POLL_SECONDS)
            (reported,) = self.store.multi_get([_REPORTED])
        return verdict

    def _write(self, verdict: Verdict, tell: Callable[[Verdict], None]) -> None:
        tell(verdict)
        self.store.set(_REPORTED, "yes")

    def end(self, others: int, seconds: float) -> None:
        """
        Say that this rank ends for the verdict; where it holds the store, wait for the others to have seen it.

        Args:
            others: how many ranks to wait for; 0 where another process holds the store.
            seconds: for which at most.
        """
        deadline = time.monotonic() + seconds
        ended = self.store.add(_ENDS, 1)
        while ended <= others and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            ended = self.store.add(_ENDS, 0)
