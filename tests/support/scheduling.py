"""How test files are dealt out to workers: the longest first, and those that mostly wait to a worker of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

WAITING = (
    "distributed/test_faults.py",
    "distributed/test_faults_of_launchers.py",
    "distributed/test_watched.py",
)
"""Files whose tests mostly wait for bounds and for processes to end, so that they hardly slow down other workers."""

LONGEST: tuple[str, ...] = ()
"""Other files that take long, the longest first."""


class LongestFirst(LoadFileScheduling):
    """
    Scheduling by file, as `--dist loadfile`, in another order.

    Of three workers and more the last takes the files that mostly wait; others take them when nothing else is left.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(next(self._units(node)), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not any(self._units(node)):
            node.shutdown()
        else:
            super()._reschedule(node)

    def _units(self, node: WorkerController) -> Iterator[str]:
        """Yield the files that a worker may take, the next one first."""
        waits = self.numnodes > 2 and node.gateway.id == f"gw{self.numnodes - 1}"
        yield from (file for file in _listed(WAITING, self.workqueue) if waits)
        if not waits:
            yield from _listed(LONGEST, self.workqueue)
            yield from (file for file in self.workqueue if not file.endswith(WAITING))
            yield from self.workqueue


def _listed(endings: Iterable[str], files: Iterable[str]) -> Iterator[str]:
    """Yield the files that a list names, in its order."""
    files = list(files)
    for ending in endings:
        yield from (file for file in files if file.endswith(ending))
