"""Write the result of a search over plans as the attribute `spmd.plan` of a function, and read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from ...dialects.compute import plain_attribute, python_value
from ...dialects.step import PLAN
from .candidates import Family
from .notes import Note

_OPTIONAL = ("family", "step", "exposed", "peak_bytes", "memory_bytes", "same_as")

_SAME = "the same as "
"""The reason in records of older versions, before the name of the first candidate with the same strategy."""


class TriedRecord(TypedDict):
    """The record of a candidate in `plan.json`."""

    name: str
    why: str
    step: NotRequired[float]
    exposed: NotRequired[float]
    peak_bytes: NotRequired[int]
    memory_bytes: NotRequired[float]
    same_as: NotRequired[str]
    family: NotRequired[Family]


@dataclass(frozen=True)
class Tried:
    """
    A candidate and its outcome.

    Args:
        why: why it was not chosen; empty if it was the best when it was tried.
        step: seconds of its step, simulated, or an estimate of the least if it has no program.
        exposed: seconds of its step while the busiest stage is idle, or None without a program.
        peak_bytes: peak of the rank that comes closest to its memory, or None if nobody computed it.
        memory_bytes: memory of that rank.
        same_as: name of the first candidate with the same strategy, if it is another one.
        family: kind of the candidate; records of older versions have None.
    """

    name: str
    why: str
    step: float | None = None
    exposed: float | None = None
    peak_bytes: int | None = None
    memory_bytes: float | None = None
    same_as: str | None = None
    family: Family | None = None

    @property
    def fits(self) -> bool | None:
        """Return whether every rank has the memory that it needs, or None if nobody computed it."""
        if self.peak_bytes is None or self.memory_bytes is None:
            return None
        return self.peak_bytes <= self.memory_bytes

    def as_dict(self) -> TriedRecord:
        """Return the known fields, for JSON and for the IR."""
        known = {name: getattr(self, name) for name in ("name", "why", *_OPTIONAL)}
        return cast("TriedRecord", {name: value for name, value in known.items() if value is not None})

    @staticmethod
    def from_dict(entry: TriedRecord) -> Tried:
        """Read a record that `as_dict` wrote."""
        optional: dict[str, Any] = {name: entry.get(name) for name in _OPTIONAL}
        if optional["same_as"] is None and entry["why"].startswith(_SAME):
            optional["same_as"] = entry["why"].removeprefix(_SAME)
        return Tried(entry["name"], entry["why"], **optional)


@dataclass(frozen=True)
class PlanSummary:
    """
    The chosen plan and the candidates of a search.

    Args:
        step: simulated seconds of the chosen plan.
        bound: proven lower bound, in seconds, of the step of all plans of a family, or None.
        bound_of: name of this family.
    """

    chosen: str
    step: float
    bound: float | None
    bound_of: str
    candidates: tuple[Tried, ...]


def plan_attribute(chosen: str, step: float, bound: tuple[float, str] | None, notes: Sequence[Note]) -> DictionaryAttr:
    """Return the attribute that describes the result of a search; of notes on one candidate only the last remains."""
    entries: dict[str, Attribute] = {"chosen": StringAttr(chosen), "step": FloatAttr(step, 64)}
    if bound is not None:
        entries |= {"bound": FloatAttr(bound[0], 64), "bound_of": StringAttr(bound[1])}
    last = {note.candidate: note for note in notes}.values()
    return DictionaryAttr({**entries, "candidates": plain_attribute([_tried_of(note).as_dict() for note in last])})


def _tried_of(note: Note) -> Tried:
    memory = float(note.memory_bytes) if note.peak_bytes is not None else None
    same_as = note.same_as.name if note.same_as is not None else None
    figures = (note.seconds, note.exposed, note.peak_bytes, memory)
    return Tried(note.candidate.name, note.why, *figures, same_as, note.candidate.family)


def read_plan(func: FuncOp) -> PlanSummary | None:
    """Read the attribute `spmd.plan` of a function; return None if it has none."""
    plan = func.attributes.get(PLAN)
    if not isinstance(plan, DictionaryAttr):
        return None
    entries = python_value(plan)
    tried = tuple(Tried.from_dict(entry) for entry in entries["candidates"])
    return PlanSummary(entries["chosen"], entries["step"], entries.get("bound"), entries.get("bound_of", ""), tried)
