"""What a search over plans found, as the attribute `spmd.plan` of a function: written and read."""

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
    """What `plan.json` holds of a candidate."""

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
    What became of a candidate.

    Args:
        why: it was not chosen; empty if it was the best when it was tried.
        step: seconds, simulated, or, where it was not finished, at the least by an estimate.
        exposed: of these, seconds in which the busiest stage does not compute; None where it was not finished.
        peak_bytes: of the rank that comes closest to its memory; None where nobody looked.
        memory_bytes: what that rank has.
        family: what kind of candidate it is; None in what an older version wrote.
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
        """Whether every rank has the memory that it needs; None where nobody looked."""
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
        """What `as_dict` wrote."""
        family = read_family(entry["family"]) if "family" in entry else None
        sizes = entry.get("peak_bytes"), entry.get("memory_bytes")
        return Tried(entry["name"], entry["why"], entry.get("step"), entry.get("exposed"), *sizes, family)


@dataclass(frozen=True)
class PlanSummary:
    """
    What was chosen of what.

    Args:
        step: the simulated seconds of the chosen plan.
        bound: a proven lower bound of the step, seconds, of all plans of a family; None where none was asked for.
        bound_of: what family.
    """

    chosen: str
    step: float
    bound: float | None
    bound_of: str
    candidates: tuple[Tried, ...]


def plan_attribute(chosen: str, step: float, bound: tuple[float, str] | None, notes: Sequence[Note]) -> DictionaryAttr:
    """The attribute for what was found."""
    found: dict[str, Attribute] = {"chosen": StringAttr(chosen), "step": FloatAttr(step, 64)}
    if bound is not None:
        found |= {"bound": FloatAttr(bound[0], 64), "bound_of": StringAttr(bound[1])}
    return DictionaryAttr({**found, "candidates": plain_attribute([_tried_of(note).as_dict() for note in notes])})


def _tried_of(note: Note) -> Tried:
    memory = float(note.memory_bytes) if note.peak_bytes is not None else None
    family = note.candidate.family
    return Tried(note.candidate.name, note.why, note.seconds, note.exposed, note.peak_bytes, memory, family)


def read_plan(func: FuncOp) -> PlanSummary | None:
    """What `spmd.plan` of a function says; None where it has none."""
    given = func.attributes.get(PLAN)
    if not isinstance(given, DictionaryAttr):
        return None
    entries = entries_of(given.data.get("candidates")) or ()
    tried = tuple(_tried(each.data) for each in entries if isinstance(each, DictionaryAttr))
    step, bound = _number(given.data.get("step")), _number(given.data.get("bound"))
    return PlanSummary(_text(given.data.get("chosen")), step or 0.0, bound, _text(given.data.get("bound_of")), tried)


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
