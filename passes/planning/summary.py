"""Write the result of a search over plans as the attribute `spmd.plan` of a function, and read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict, cast

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from ...dialects.compute import plain_attribute, python_value
from ...dialects.kinds import entries_of
from ...dialects.step import PLAN
from .candidates import Family
from .notes import Note
from .records import FamilyRecord, family_record, read_family

_NUMBERS = ("step", "exposed", "peak_bytes", "memory_bytes")


class TriedRecord(TypedDict):
    """The record of a candidate in `plan.json`."""

    name: str
    why: str
    step: NotRequired[float]
    exposed: NotRequired[float]
    peak_bytes: NotRequired[int]
    memory_bytes: NotRequired[float]
    family: NotRequired[FamilyRecord]


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
        family: kind of the candidate; records of older versions have None.
    """

    name: str
    why: str
    step: float | None = None
    exposed: float | None = None
    peak_bytes: int | None = None
    memory_bytes: float | None = None
    family: Family | None = None

    @property
    def fits(self) -> bool | None:
        """Return whether every rank has the memory that it needs, or None if nobody computed it."""
        if self.peak_bytes is None or self.memory_bytes is None:
            return None
        return self.peak_bytes <= self.memory_bytes

    def as_dict(self) -> TriedRecord:
        """Return the known fields, for JSON and for the IR."""
        family = family_record(self.family) if self.family is not None else None
        known = {"name": self.name, "why": self.why, "family": family, **{n: getattr(self, n) for n in _NUMBERS}}
        return cast("TriedRecord", {name: value for name, value in known.items() if value is not None})

    @staticmethod
    def from_dict(entry: TriedRecord) -> Tried:
        """Read a record that `as_dict` wrote."""
        family = read_family(entry["family"]) if "family" in entry else None
        sizes = entry.get("peak_bytes"), entry.get("memory_bytes")
        return Tried(entry["name"], entry["why"], entry.get("step"), entry.get("exposed"), *sizes, family)


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
    """Return the attribute that describes the result of a search."""
    entries: dict[str, Attribute] = {"chosen": StringAttr(chosen), "step": FloatAttr(step, 64)}
    if bound is not None:
        entries |= {"bound": FloatAttr(bound[0], 64), "bound_of": StringAttr(bound[1])}
    return DictionaryAttr({**entries, "candidates": plain_attribute([_tried_of(note).as_dict() for note in notes])})


def _tried_of(note: Note) -> Tried:
    memory = float(note.memory_bytes) if note.peak_bytes is not None else None
    family = note.candidate.family
    return Tried(note.candidate.name, note.why, note.seconds, note.exposed, note.peak_bytes, memory, family)


def read_plan(func: FuncOp) -> PlanSummary | None:
    """Read the attribute `spmd.plan` of a function; return None if it has none."""
    plan = func.attributes.get(PLAN)
    if not isinstance(plan, DictionaryAttr):
        return None
    entries = entries_of(plan.data.get("candidates")) or ()
    tried = tuple(_tried(entry.data) for entry in entries if isinstance(entry, DictionaryAttr))
    step, bound = _number(plan.data.get("step")), _number(plan.data.get("bound"))
    return PlanSummary(_text(plan.data.get("chosen")), step or 0.0, bound, _text(plan.data.get("bound_of")), tried)


def _tried(entry: Mapping[str, Attribute]) -> Tried:
    peak, family = entry.get("peak_bytes"), entry.get("family")
    return Tried(
        _text(entry.get("name")),
        _text(entry.get("why")),
        _number(entry.get("step")),
        _number(entry.get("exposed")),
        peak.value.data if isinstance(peak, IntegerAttr) else None,
        _number(entry.get("memory_bytes")),
        read_family(python_value(family)) if isinstance(family, DictionaryAttr) else None,
    )


def _text(value: Attribute | None) -> str:
    return value.data if isinstance(value, StringAttr) else ""


def _number(value: Attribute | None) -> float | None:
    return value.value.data if isinstance(value, FloatAttr) else None
