"""
Comparison of replicas during training: losses, rates, batches, and every part that several ranks hold.

Rank 0 names a step in the near future. Before that step each rank computes checksums of its parameters, buffers and
states, and of its inputs, and the watch's thread sends them to the store, where rank 0 compares them: ranks do not
send messages to each other, and none waits. The distance of such steps keeps the cost of the checksums low.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from torch.distributed.distributed_c10d import Store

from .agreement import given
from .batches import Batch, LocalRows
from .executor import Executor
from .judge import Report
from .plan import Plan, Value

LOG = logging.getLogger("shardwright")

_Answer: TypeAlias = Mapping[str, Any]
"""A rank's losses, rates and rows, and checksums of its values, as JSON."""

_KEPT = ("param", "buffer", "state")
_SHARE = 0.003
"""The share of a job's time that its checksums may take."""

_SECONDS_APART = 2.0
"""The least time between comparisons."""

_SAMPLES = 8
"""The number of elements that show the difference of two replicas."""

_ROUNDING = 1e-4
"""A relative difference below which replicas differ by rounding, as on ranks with different hardware."""

_FORGOTTEN = 60.0
"""Seconds after which a step that has not come is given up, for example because another program runs."""


def checksum(tensor: torch.Tensor) -> int:
    """Return a number that changes with any bit of a tensor."""
    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel():
        return 0
    words = flat.view(torch.int32) if flat.nbytes % 4 == 0 and flat.element_size() <= 4 else flat.view(torch.uint8)
    return int(words.sum().item())


def samples(tensor: torch.Tensor) -> list[float]:
    """Return a few elements, evenly spaced."""
    flat = tensor.detach().reshape(-1)
    taken = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES]
    return [float(f"{number:.7g}") for number in taken.double().tolist()] if not taken.is_complex() else []


@dataclass(eq=False)
class Replicas:
    """
    The data of a step on this rank that must equal the data of other ranks.

    Args:
        number: number of the step among the steps of the job, the same on all ranks.
    """

    executor: Executor
    number: int
    steps: int = 0
    wanted: tuple[int, int] | None = None
    made: tuple[int, _Answer] | None = None
    _losses: float | torch.Tensor = 0.0
    _rates: float = 0.0

    def look(self, batch: Batch | LocalRows, rates: Sequence[float]) -> None:
        """Compute the requested checksums; call this before each step."""
        self.steps += 1
        # The weights keep two exchanged rates from canceling out.
        self._rates += sum(rate * (place + 1) for place, rate in enumerate(rates))
        if (request := self.wanted) is None or self.steps < request[1]:
            return
        self.wanted = None
        self.made = request[0], self._checksums(batch) if self.steps == request[1] else {}

    def took(self, loss: torch.Tensor) -> None:
        """Add the loss of a step; call this after each step."""
        self._losses += loss.item() if loss.device.type == "cpu" else loss.detach()

    def _checksums(self, batch: Batch | LocalRows) -> _Answer:
        began = time.perf_counter()
        plan, rank = self.executor.plan, self.executor.comm.rank
        rows, items = given(plan, rank, self.executor.plans, batch)
        local = [self.executor.local(value) for value in kept(plan)]
        answer: dict[str, object] = {"losses": float(self._losses).hex(), "rates": self._rates.hex()}
        answer |= {"rows": str(rows), "items": items, "step": self.steps}
        answer["values"] = [(checksum(tensor), samples(tensor)) for tensor in local]
        return answer | {"seconds": time.perf_counter() - began}


def kept(plan: Plan) -> list[Value]:
    """Return the values that a stage keeps between steps, without counts of steps."""
    return [value for value in plan.inputs if value.role in _KEPT]


@dataclass
class Registry:
    """The steps of this process."""

    made: int = 0
    _steps: WeakSet[Replicas] = field(default_factory=lambda: WeakSet[Replicas]())
    _answered: int = 0

    def add(self, executor: Executor) -> Replicas:
        """Register a step; every rank must register its steps in the same order."""
        self.made += 1
        replicas = Replicas(executor, self.made)
        self._steps.add(replicas)
        return replicas

    def find(self, number: int) -> Replicas | None:
        """Return the step with a number, if it still exists."""
        return next((step for step in list(self._steps) if step.number == number), None)

    def latest(self) -> Replicas | None:
        """Return the step that has run most often."""
        return max(list(self._steps), key=lambda step: step.steps, default=None)

    def answer(self, store: Store, rank: int, mark: Mapping[str, int]) -> None:
        """Request the checksums that rank 0 wants from the main thread, or send them when they exist."""
        number, replicas = mark["number"], self.find(mark["of"])
        if replicas is None or number <= self._answered:
            return
        if replicas.made is not None and replicas.made[0] == number:
            store.set(f"mark/{number}/{rank}", json.dumps(replicas.made[1]))
            self._answered = number
        elif replicas.wanted is None:
            replicas.wanted = number, mark["step"]


REPLICAS = Registry()
"""The steps of this process."""


@dataclass
class Marks:
    """
    Chooses steps on rank 0 and compares their replicas.

    Args:
        beat: seconds between two calls of `follow`.
    """

    store: Store
    world: int
    beat: float
    number: int = 0
    _of: Replicas | None = None
    _asked: float = 0.0
    _next: float = _SECONDS_APART
    _ahead: float = 1.0
    _warned: bool = False
    _seen: tuple[float, int] = (0.0, 0)

    def follow(self, reports: Sequence[Report], now: float, named: Callable[[int], str]) -> str:
        """Return a message about the first disagreement of ranks; empty as long as they agree."""
        if self._of is None:
            if now >= self._next and (latest := REPLICAS.latest()) is not None and latest.steps:
                self._ask(latest, now)
            return ""
        keys = [f"mark/{self.number}/{rank}" for rank in range(self.world)]
        if not self.store.check(keys):
            if now - self._asked > _FORGOTTEN:
                self._of, self._next = None, now + _SECONDS_APART
            return ""
        answers = [json.loads(text) for text in self.store.multi_get(keys)]
        for key in keys:
            self.store.delete_key(key)
        replicas, self._of = self._of, None
        if not all(answers):
            # Some rank was already past the step.
            self._ahead *= 2
            self._next = now
            return ""
        self._next = now + max(_SECONDS_APART, max(answer["seconds"] for answer in answers) / _SHARE)
        return self._compared(replicas.executor.plans, answers, named)

    def _ask(self, replicas: Replicas, now: float) -> None:
        (before, steps), self._seen = self._seen, (now, replicas.steps)
        rate = max(replicas.steps - steps, 0) / max(now - before, self.beat)
        self.number, self._of, self._asked = self.number + 1, replicas, now
        step = replicas.steps + 2 + math.ceil(self._ahead * 3 * self.beat * rate)
        self.store.set("mark", json.dumps({"number": self.number, "of": replicas.number, "step": step}))

    def _compared(self, plans: Sequence[Plan], answers: Sequence[_Answer], named: Callable[[int], str]) -> str:
        step = answers[0]["step"]
        for quantity in ("losses", "rates"):
            if odd := _minority([answer[quantity] for answer in answers]):
                details = "learning rates" if quantity == "rates" else "losses"
                who = _names(odd, named)
                return f"step {step}: {who} had other {details} than the other ranks since the start; {_MEND}"
        by_rows: dict[str, list[int]] = {}
        for rank, answer in enumerate(answers):
            by_rows.setdefault(answer["rows"], []).append(rank)
        for ranks in by_rows.values():
            for name in answers[ranks[0]]["items"]:
                if odd := _minority([answers[rank]["items"].get(name) for rank in ranks]):
                    who = _names([ranks[place] for place in odd], named)
                    return f"step {step}: {who} got another item {name!r} of the batch than other ranks; {_LOAD}"
        return self._values(step, plans, answers, named)

    def _values(self, step: int, plans: Sequence[Plan], answers: Sequence[_Answer], named: Callable[[int], str]) -> str:
        holders: dict[tuple[str, ...], list[tuple[int, int, list[float]]]] = {}
        for plan in plans:
            for place, value in enumerate(kept(plan)):
                for rank, job_rank in enumerate(plan.ranks):
                    key = (value.role, value.name, value.state, str(value.slices(plan.mesh, rank)))
                    holders.setdefault(key, []).append((job_rank, *answers[job_rank]["values"][place]))
        differ: dict[str, tuple[float, list[int]]] = {}
        for (role, name, state, _), replicas in holders.items():
            if odd := _minority([numbers for _, numbers, _ in replicas]):
                ranks = [replicas[place][0] for place in odd]
                first = next(place for place in range(len(replicas)) if place not in odd)
                apart = max(_relative(replicas[first][2], replicas[place][2]) for place in odd)
                differ[f"{state or role} of {name!r}" if state else f"{role} {name!r}"] = apart, ranks
        if not differ:
            return ""
        name, (apart, ranks) = max(differ.items(), key=lambda item: item[1][0])
        more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
        text = f"step {step}: {_names(ranks, named)} holds another {name}{more} than the ranks that hold the same"
        if apart >= _ROUNDING:
            return f"{text}, by {apart:.1g} of its size; {_MEND}"
        if not self._warned:
            self._warned = True
            mend = "the same hardware and number of threads on all ranks keep them equal"
            LOG.warning("%s, by rounding (%.1g of its size): %s", text, apart, mend)
        return ""


_MEND = (
    "they no longer train the same model: resume from the last checkpoint, and look for what the script does "
    "differently there, or for a faulty machine"
)
_LOAD = "load the same data on all of them, or use step.loader(dataset)"


def _minority(values: Sequence[object]) -> list[int]:
    """Return the indices of the values that differ from the most frequent value, or from the first of equals."""
    if len(set(values)) <= 1:
        return []
    counted = Counter(values)
    usual = max(counted, key=lambda value: (counted[value], -values.index(value)))
    return [place for place, value in enumerate(values) if value != usual]


def _names(ranks: Sequence[int], named: Callable[[int], str]) -> str:
    return ", ".join(named(rank) for rank in ranks[:3]) + (f" and {len(ranks) - 3} more" if len(ranks) > 3 else "")


def _relative(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference relative to the largest number; 0 if only unsampled bits differ."""
    size = max(map(abs, (*one, *other)), default=0.0)
    apart = max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)
    return apart / size if size and math.isfinite(size) else float(size != 0 and not apart == 0)
