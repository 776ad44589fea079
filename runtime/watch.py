"""
The watch: a fault of one rank ends the job within a bounded time, with one message that names it.

Every rank has a thread that writes a report to the store of the job, about twice a second: the activity of its main
thread, the step, and the ranks that it waits for (`faults.RankActivity`). A few ranks read all reports and judge them
(`judge.Judge`). Each of these ranks learns at once when a rank of the same machine dies. The first rank that finds a
fault puts its verdict into the store and prints it; the others see that there is a verdict, wait until it is printed
(`verdicts.Verdicts`), and end without a message.

A rank that fails with its own error does the same: it claims the verdict and prints its message. If a collective
fails because of another rank, the main thread waits for the verdict, which ends the process without printing the
consequence.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import PrefixStore

from .faults import ACTIVITY, FaultBounds, main_thread_line
from .judge import Judge, Report, Verdict
from .lifetime import Identity
from .replicas import REPLICAS, Marks
from .verdicts import KEYS, VERDICT, Verdicts

LOG = logging.getLogger("shardwright")

_JUDGES = 4
"""The number of ranks that read all reports: several, because one of them may be at fault."""

_MARK = "mark"
_GRACE_SECONDS = 0.5
"""How long a rank that must end looks for the reason."""

_INTERRUPT_SECONDS = 1.5
"""Seconds after which an interrupted rank ends even inside a collective."""

_joined = 0
"""The number of watches that this process has started, which makes their keys different."""


def job_store() -> TCPStore | None:
    """Return the store of the job on a separate connection, or None for a store of another kind."""
    store: object = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.clone() if isinstance(store, TCPStore) else None  # pyright: ignore[reportAttributeAccessIssue]


class Watch:
    """
    Watches over a job from this rank; every rank must construct one after its process group exists.

    Args:
        store: store of the job, on a separate connection.
    """

    def __init__(self, name: str, bounds: FaultBounds, store: TCPStore) -> None:
        global _joined
        _joined += 1
        self.name, self._bounds, self._rank, self._world = name, bounds, dist.get_rank(), dist.get_world_size()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"shardwright/{attempt}/{_joined}", store)
        self._verdicts = Verdicts(self._store, self._rank, bounds.gone, self._is_dead)
        self._beat, self._clock, self._signal, self._holder_left = 0, 0.0, 0, False
        # torchrun holds the store of the job; otherwise rank 0 holds it.
        self._held_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._holds_store = self._rank == 0 and not self._held_by_agent
        self._lock, self._done = threading.Lock(), threading.Event()
        self._store.set(f"who/{self._rank}", json.dumps(asdict(Identity.mine())))
        self._store.set(f"report/{self._rank}", Report().text())
        if self._rank == 0:
            self._verdicts.open()
            self._store.set(_MARK, "")
        keys = [f"who/{rank}" for rank in range(self._world)]
        self._store.wait([*keys, *KEYS, _MARK], timedelta(seconds=self._bounds.start))
        self._identities = [Identity(**json.loads(text)) for text in self._store.multi_get(keys)]
        opened = ((rank, identity.opened()) for rank, identity in enumerate(self._identities) if rank != self._rank)
        self._fds = {fd: rank for rank, fd in opened if fd is not None}
        self._buried: set[int] = set()
        self.judge = Judge(bounds, [identity.host for identity in self._identities])
        judges = {number * self._world // _JUDGES for number in range(_JUDGES)}
        self._judges = self._rank in judges
        self._marks = Marks(self._store, self._world, bounds.beat) if self._rank == 0 else None
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        for fd in (self._wake, *self._fds):
            self._poll.register(fd, select.POLLIN)
        self._listen_to_signals()
        ACTIVITY.lost_peer, ACTIVITY.timeout = self._lost_peer, bounds.timeout
        self._thread = threading.Thread(target=self._run, name="shardwright watch", daemon=True)
        self._thread.start()
        if not self._holds_store:
            threading.Thread(target=self._watch_store, name="shardwright watch of the store", daemon=True).start()

    # Signals: torchrun ends the ranks of a machine by SIGTERM as soon as one has failed, but a main thread that waits
    # in a collective would not see it. The number of a signal arrives through the pipe in any case.

    def _listen_to_signals(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        if (other := signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(other)
            return
        signal.signal(signal.SIGTERM, _left_to_the_watch)
        os.register_at_fork(after_in_child=_forget_signals)

    def _told_to_end(self, number: int) -> bool:
        """Whether a signal should end this process, and no other handler is set for it."""
        if number == signal.SIGTERM:
            return signal.getsignal(number) is _left_to_the_watch
        return number == signal.SIGINT and signal.getsignal(number) is signal.default_int_handler

    # The watch's thread.

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._done.is_set():
                ready = [fd for fd, _ in self._poll.poll(self._bounds.beat * 1000)]
                now = time.monotonic()
                elapsed, last = now - last, now
                self._turn(ready, elapsed)
        except (RuntimeError, ValueError) as error:
            self._store_lost(str(error).partition("\n")[0])

    def _turn(self, ready: Sequence[int], elapsed: float) -> None:
        # The clock stands still while this process is stopped.
        self._clock += min(elapsed, 4 * self._bounds.beat)
        if not self._held_by_agent and self._is_dead(0):
            self._store_lost(self._identities[0].death() or "its process has ended")
            return
        if self._wake in ready:
            for number in os.read(self._wake, 64):
                if self._told_to_end(number):
                    self._end_by(number)
        self._report()
        dead = [fd for fd in ready if fd in self._fds]
        self._obey()
        for fd in dead:
            self._bury(fd)
        if self._judges:
            self._judge()

    def _report(self) -> None:
        self._beat += 1
        what = ACTIVITY.what
        # The main thread may still run for a moment.
        phase = "ending" if self._signal else ACTIVITY.phase
        line = "" if what or phase == "left" else main_thread_line()
        # This thread's own time is excluded.
        work = -1 if ACTIVITY.has_stepped else round(time.process_time() - time.thread_time(), 2)
        here = ACTIVITY.number, ACTIVITY.calls, what, ACTIVITY.patient, line, ACTIVITY.busy, ACTIVITY.lost
        self._store.set(f"report/{self._rank}", Report(self._beat, phase, *here, work).text())

    def _obey(self) -> None:
        """End if there is a verdict; answer a request to compare replicas."""
        verdict, mark, of_first = self._store.multi_get([VERDICT, _MARK, "report/0"])
        if verdict:
            if ACTIVITY.phase == "failed":
                # The main thread will end soon.
                self._done.set()
            else:
                with self._lock:
                    self._end_with(self._verdicts.await_told(self._tell))
        self._holder_left = not self._held_by_agent and Report.parsed(of_first).phase == "left"
        if mark:
            REPLICAS.answer(self._store, self._rank, json.loads(mark))

    def _reports(self) -> list[Report]:
        texts = self._store.multi_get([f"report/{rank}" for rank in range(self._world)])
        return [Report.parsed(text) for text in texts]

    def _judge(self) -> None:
        reports = self._reports()
        states = {rank: state for rank in self._fds.values() if (state := self._identities[rank].state())}
        if verdict := self.judge.see(reports, self._clock, states):
            self.claim(verdict)
        if self._marks is None:
            return
        if (latest := REPLICAS.latest()) is not None:
            self.judge.stages = [plan.ranks for plan in latest.executor.plans]
        if slow := self.judge.slow():
            LOG.warning("%s: %s", self.name, slow)
        if text := self._marks.follow(reports, self._clock, self.judge.named):
            self.claim(Verdict((), text))

    def _bury(self, fd: int) -> None:
        """Handle the death of a rank of this machine: a fault, unless it announced that it leaves or fails."""
        rank = self._fds.pop(fd)
        self._buried.add(rank)
        self._poll.unregister(fd)
        os.close(fd)
        how = self._identities[rank].death()
        reports = self._reports()
        if reports[rank].phase in ("script", "step") and ACTIVITY.phase != "left":
            self.judge.see(reports, self._clock)
            self.claim(Verdict((rank,), self.judge.gone(rank, self._rank, how)))

    def _is_dead(self, rank: int) -> bool:
        if rank in self._buried:
            return True
        poll = select.poll()
        for fd in (fd for fd, owner in self._fds.items() if owner == rank):
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def _tell(self, verdict: Verdict) -> None:
        LOG.critical("%s: %s", self.name, verdict.text)
        _tell_agent(verdict.text)

    def claim(self, verdict: Verdict) -> NoReturn:
        """Make a verdict the job's verdict, unless it has one; have it printed and end all ranks."""
        with self._lock:
            self._end_with(self._verdicts.claim(verdict, self._tell))

    def _end_with(self, verdict: Verdict) -> NoReturn:
        """End this process for a verdict, and kill local ranks at fault: a stopped process would not notice."""
        for fd, rank in self._fds.items():
            if rank in verdict.ranks:
                with suppress(OSError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        self._let_others_end(verdict)
        _exit(1)

    def _let_others_end(self, verdict: Verdict) -> None:
        """Make the rank that holds the store end after the others, which read the verdict in it."""
        others = set(range(1, self._world)) - self._buried - set(verdict.ranks) if self._holds_store else ()
        with suppress(RuntimeError):
            self._verdicts.end(len(others), 2 * _GRACE_SECONDS + 2 * self._bounds.beat)

    def _end_by(self, number: int) -> NoReturn:
        """End by a signal; report another rank's failure that caused it, or the signal if only this rank got it."""
        self._signal = number
        grace = _INTERRUPT_SECONDS if number == signal.SIGINT else _GRACE_SECONDS
        deadline = time.monotonic() + grace
        while (remaining := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in self._poll.poll(min(remaining, 0.05) * 1000)]
            self._report()
            self._obey()
            for fd in [fd for fd in ready if fd in self._fds]:
                self._bury(fd)
            if self._wake in ready:
                os.read(self._wake, 64)
        others = [report.phase for rank, report in enumerate(self._reports()) if rank != self._rank]
        if number == signal.SIGTERM and "ending" not in others:
            who = self.judge.named(self._rank)
            self.claim(Verdict((), f"{who} was ended by SIGTERM in {Report(step=ACTIVITY.number)}; this ends the job"))
        _exit(128 + number)

    # The store is in torchrun or in rank 0, and ends with it. Then the ranks have no way to agree on one rank that
    # reports it: the first rank of each machine reports it.

    def _before_me(self) -> list[int]:
        """Return the ranks of this machine that would report the loss of the store before this rank."""
        machine = self._identities[self._rank].machine
        mine = [rank for rank in range(self._rank) if self._identities[rank].machine == machine]
        return [rank for rank in mine if rank not in self._buried and (self._held_by_agent or rank)]

    @property
    def _holder(self) -> str:
        return "torchrun on the first machine" if self._held_by_agent else self.judge.named(0)

    @property
    def _holder_state(self) -> str:
        return "" if self._held_by_agent else self._identities[0].state()

    def _store_lost(self, why: str) -> None:
        """Handle the loss of the store, and of the process that holds it."""
        if self._done.is_set() or self._signal or ACTIVITY.phase in ("left", "failed"):
            return
        if self._holder_left:
            self._done.set()
            return
        if not self._before_me():
            gone = f"{self._holder}, which holds the job's store, is gone ({why})"
            LOG.critical("%s: %s; this ends the job", self.name, gone)
        _exit(1)

    def _watch_store(self) -> None:
        """End the job if the store does not answer while this rank waits for others: the watch's thread is stuck."""
        beat, last, stuck, before = self._bounds.beat, time.monotonic(), 0.0, (0, 0)
        while not self._done.wait(beat):
            now, progress = time.monotonic(), (self._beat, ACTIVITY.calls)
            if progress != before or not ACTIVITY.what or self._lock.locked():
                stuck, before = 0.0, progress
            else:
                # A stopped process gains at most this time, as in `_turn`.
                stuck += min(now - last, 4 * beat)
            last = now
            bound = self._bounds.silent if ACTIVITY.has_stepped or self._holder_state else self._bounds.start
            # The ranks follow one another, so that only one reports.
            if stuck >= bound + 4 * beat * len(first := self._before_me()):
                if not any(map(self._is_dead, first)):
                    self._tell_of_stuck_store(stuck)
                _exit(1)

    def _tell_of_stuck_store(self, seconds: float) -> None:
        state = f", {holder_state}" if (holder_state := self._holder_state) else ""
        here = Report(phase=ACTIVITY.phase, step=ACTIVITY.number, what=ACTIVITY.what)
        LOG.critical(
            "%s: %s, which holds the job's store, does not answer%s: %s has waited %.0f s in %s; this ends the job",
            self.name,
            self._holder,
            state,
            self.judge.named(self._rank),
            seconds,
            here,
        )
        if self._held_by_agent:
            return
        # Kill the rank that holds the store last: otherwise the other ranks would report that it is gone.
        for fd, _ in sorted(self._fds.items(), key=lambda item: item[1], reverse=True):
            with suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)

    # The main thread's methods.

    def _lost_peer(self) -> None:
        """Wait for the verdict on the rank that made a collective fail; the verdict ends this process."""
        os.write(self._waker, b"\0")
        self._thread.join(self._bounds.gone + self._bounds.silent)

    def fail(self, text: str, tell: Callable[[], None]) -> None:
        """
        Report this rank's failure, unless the job has ended for another reason, and end the other ranks.

        Args:
            text: the message, which another rank prints if this rank dies first.
            tell: prints the message.
        """
        ACTIVITY.phase = "failed"
        _forget_signals()
        mine = Verdict((), text)

        def tell_either(verdict: Verdict) -> None:
            if verdict is not mine:
                self._tell(verdict)
                return
            tell()
            _tell_agent(text)

        with self._lock:
            try:
                verdict = self._verdicts.claim(mine, tell_either)
            except RuntimeError:
                # The store no longer exists.
                tell()
            else:
                self._let_others_end(verdict)

    def end(self) -> NoReturn:
        """End this process at once, after `fail`."""
        _exit(1)

    def close(self) -> None:
        """Leave the job: wait a little for the other ranks to leave, because this rank may have left too early."""
        ACTIVITY.phase, ACTIVITY.waits_for = "left", None
        with suppress(RuntimeError):
            self._report()
            self._store.add("left", 1)
            deadline = time.monotonic() + self._bounds.gone
            while self._thread.is_alive() and time.monotonic() < deadline and self._store.add("left", 0) < self._world:
                time.sleep(min(0.02, self._bounds.beat))
            self._done.set()
            os.write(self._waker, b"\0")
            self._thread.join(_GRACE_SECONDS)
            self._obey()
            if self._judges:
                # A last judgment, after all ranks have left.
                self._judge()
        _forget_signals()
        ACTIVITY.lost_peer, ACTIVITY.phase = None, "script"


def _left_to_the_watch(number: int, frame: object) -> None:
    """Handle SIGTERM in the main thread by doing nothing: the watch's thread reads the signal and ends the process."""


def _forget_signals() -> None:
    """Restore the default handling of signals, at the end of a watch and in a process forked from a rank."""
    with suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _left_to_the_watch:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)


def _tell_agent(text: str) -> None:
    """Write the message to the file that torchrun reads for its report."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        entry = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": entry}), encoding="utf-8")


def _exit(code: int) -> NoReturn:
    """End the process at once, even if threads wait for messages and could not be ended otherwise."""
    with suppress(ValueError, OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
