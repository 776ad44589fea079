"""The verdict that ends a job: the store takes one, and its message is printed before any rank ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store

from .judge import Verdict

VERDICT = "verdict"
"""The key of the verdict in the store; its value is empty as long as there is none."""

_REPORTER, _REPORTED, _ENDS = "reporter", "reported", "ends"
KEYS = (VERDICT, _REPORTER, _REPORTED)
"""The keys that exist in the store after `Verdicts.open`."""

_POLL_SECONDS = 0.02


@dataclass
class Verdicts:
    """
    The verdict of a job, as one rank sees it: the store accepts only the first.

    A rank ends for a verdict once its message is printed. The rank that found the verdict prints it and marks it as
    printed in the store; if that rank dies before (another may have killed it as the rank at fault), the next prints.

    Args:
        patience: seconds that a rank may take to print a message before another does so, unless it is known to be dead.
        is_dead: function that tells whether a rank is known to be dead.
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
        Make a verdict the verdict of the job, unless it has one; a message is printed before this returns.

        Args:
            tell: prints the message of a verdict, either this verdict or the job's earlier one.

        Returns:
            The job's verdict.
        """
        mine = json.dumps({"by": self.rank, **asdict(verdict)})
        if self.store.compare_set(VERDICT, "", mine).decode() == mine:
            self._write(verdict, tell)
            return verdict
        return self.await_told(tell)

    def await_told(self, tell: Callable[[Verdict], None]) -> Verdict:
        """
        Wait until the message of the present verdict is printed, and print it if the reporting rank fails to.

        Returns:
            The verdict.
        """
        text, reported = self.store.multi_get([VERDICT, _REPORTED])
        entry = json.loads(text)
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
        Announce that this rank ends for the verdict; if it holds the store, wait until the others have seen it.

        Args:
            others: the number of ranks to wait for; 0 if another process holds the store.
            seconds: upper bound on the wait.
        """
        deadline = time.monotonic() + seconds
        ended = self.store.add(_ENDS, 1)
        while ended <= others and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            ended = self.store.add(_ENDS, 0)
