"""The phases of the search that find plans within memory: tensor parallelism, accumulation, recomputation, prices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from math import inf, prod

from .candidates import FIRST, Candidate, Choice, Layout, axes_of, preset
from .layouts import accumulations
from .notes import Note
from .race import Race

FALLING = 0.95
"""The part of a peak that half as many rows may leave, so that still fewer rows are worth a trial."""

FAR = 1.5
"""A candidate may take this multiple of the fastest step and still be of interest, since predictions err, and since a
pipeline that does not fit has faster schedules with fewer activations."""

MUCH = 0.5
"""Most exposed communication, as a fraction of a step, that counts as mostly hidden."""

REFINED = 2
"""Number of layouts that are searched with more weights."""

ROUNDS = 3
"""Number of times that the fraction of activations to keep is interpolated between known fractions."""

GRAIN = 0.05
"""Fractions of activations to keep are multiples of this; interpolated ones are rounded down."""


class MemoryPhases(Race):
    """A race whose candidates that do not fit are entered again with less memory."""

    def _as_asked(self, candidate: Candidate) -> Candidate:
        """Return a candidate with the ranks, shares and kept activations that the user has decided."""
        if self.ranks is not None:
            candidate = replace(candidate, layout=replace(candidate.layout, ranks=self.ranks))
        if self.fixed.balanced:
            candidate = replace(candidate, choice=replace(candidate.choice, balanced=True))
        return candidate if self.fixed.keep is None else _keeping(candidate, self.fixed.keep)

    def _tensor_parallel(self) -> Iterator[Candidate]:
        """Yield tensor parallelism inside data parallelism, at every degree (Megatron)."""
        for mesh in self.meshes:
            if len(axes := axes_of(mesh)) == 2:
                yield Candidate(Layout(mesh), preset(("dp", axes[:1]), ("tp", axes[1:])))

    def _too_large(self, *, shrinking: bool = False) -> list[Note]:
        """
        Return the notes of candidates that would be the fastest if they fitted.

        Args:
            shrinking: whether to leave out the strategies whose parameters and states alone do not fit.
        """
        judged = [note for note in self.notes if note.peak_bytes is not None and note.seconds is not None]
        large = [note for note in judged if not note.fits and not self._is_worse(_least_step(note))]
        return [note for note in large if not shrinking or note.lasting_bytes < note.memory_bytes]

    def _keeping_less(self, known: Collection[Candidate] = ()) -> Iterator[list[Candidate]]:
        """
        Yield candidates that do not fit, with recomputation: first with as few activations as possible, then with as
        many as memory probably allows. The candidates are the fastest, and the smallest of different strategies, that
        are not yet `known`.
        """
        if self.fixed.keep is not None:
            return
        notes = [note for note in self._too_large(shrinking=True) if note.candidate.layout.keep == 1]
        notes = [note for note in notes if note.candidate not in known]
        fastest = sorted(notes, key=step_of)[:REFINED]
        chosen = list(dict.fromkeys(note.candidate for note in (*fastest, *_smallest(notes))))
        yield [_keeping(candidate, 0.0) for candidate in chosen]
        for _ in range(ROUNDS):
            fractions = ((candidate, self._as_much_as_fits(candidate)) for candidate in chosen)
            yield [_keeping(candidate, part) for candidate, part in fractions if part is not None]

    def _accumulated(self) -> Iterator[Candidate]:
        """
        Yield candidates that do not fit, with the batch in as few parts as may make them fit, or in as many as it has:
        the fastest, tensor parallelism, whose parameters are not gathered for each part, and ZeRO-3.
        """
        if self.bench.cut_refusal() is None:
            large = sorted(self._too_large(shrinking=True), key=step_of)
            whole = [note for note in large if note.candidate.layout.mode == "whole"]
            tensor_parallel = set(map(self._as_asked, self._tensor_parallel()))
            others = whole[REFINED:]
            divided = [it for it in others if it.candidate in tensor_parallel or _gathers(it.candidate)]
            for note in (*whole[:REFINED], *divided):
                room = note.memory_bytes - note.lasting_bytes
                needed = ((note.peak_bytes or 0) - note.lasting_bytes) / room
                most = self.bench.rows // _rows_split(note.candidate)
                numbers = [parts for parts in self._numbers_of_parts() if parts <= most]
                for parts in [parts for parts in numbers if parts >= needed][:REFINED] or numbers[-1:]:
                    yield replace(note.candidate, layout=replace(note.candidate.layout, mode="accumulate", parts=parts))

    def _numbers_of_parts(self) -> Iterator[int]:
        """Yield the numbers of parts of a batch with accumulation, and multiples of the largest for large batches."""
        parts = 0
        for layout in accumulations(self.meshes[0], self.bench.rows, self.fixed):
            yield (parts := layout.parts)
        while parts and self.fixed.micro_batches is None and self.bench.rows % (parts := 2 * parts) == 0:
            yield parts

    def _finer_parts(self) -> Iterator[list[Candidate]]:
        """Yield the smallest candidates with accumulation in twice as many parts, as long as nothing fits."""
        if self.fixed.micro_batches is not None:
            return
        tried, peak = 0, inf
        while self.best is None and not self.estimates:
            judged = [note for note in self.notes if note.peak_bytes and note.candidate.layout.mode == "accumulate"]
            judged = sorted(judged, key=lambda note: note.peak_bytes or 0)[:REFINED]
            if not judged or (judged[0].peak_bytes or 0) > FALLING * peak:
                return
            peak, least = judged[0].peak_bytes or 0, [note.candidate for note in judged]
            halves = [replace(each, layout=replace(each.layout, parts=2 * each.layout.parts)) for each in least]
            finer = [it for it in halves if it.layout.parts > tried and self.bench.rows % it.layout.parts == 0]
            if not finer:
                return
            tried = max(candidate.layout.parts for candidate in finer)
            yield finer

    def _gathered_per_part(self) -> Iterator[Candidate]:
        """Yield the fastest and the smallest candidates with ZeRO-3 and accumulation, with gathers in each part."""
        large = [note for note in self._too_large(shrinking=True) if note.candidate.layout.mode == "accumulate"]
        if not self.bench.is_pinned:
            large = [note for note in large if _gathers(note.candidate)]
        fastest = sorted(large, key=step_of)[:REFINED]
        for candidate in dict.fromkeys(note.candidate for note in (*fastest, *_smallest(large))):
            yield replace(candidate, layout=replace(candidate.layout, per_part=True))

    def _as_much_as_fits(self, candidate: Candidate) -> float | None:
        """Return the fraction of activations that a candidate can probably keep, between known ones, or None."""
        judged = [note for note in self.notes if note.peak_bytes is not None]
        like = [note for note in judged if _keeping(note.candidate, 1.0) == candidate]
        fitting = max((note for note in like if note.fits), key=_part_kept, default=None)
        larger = min((note for note in like if not note.fits), key=_part_kept, default=None)
        if fitting is None or larger is None or self._is_worse(_least_step(larger)):
            return None
        low, high = (note.peak_bytes or 0 for note in (fitting, larger))
        way = (fitting.memory_bytes - low) / (high - low) if high > low else 0.0
        part = _part_kept(fitting) + way * (_part_kept(larger) - _part_kept(fitting))
        return round(part // GRAIN * GRAIN, 2)

    def _within_memory(self, most: float = inf) -> Iterator[Candidate]:
        """
        Yield strategies that pay for memory, on layouts that would be faster if they fitted, or if nothing fits.

        Args:
            most: largest peak that a strategy on such a layout has, as a multiple of the memory.
        """
        layouts = [note.candidate.layout for note in sorted(self._too_large(), key=step_of) if _overshoot(note) <= most]
        if self.best is None and not self.estimates and self.bench.cut_refusal() is None:
            layouts += accumulations(self.meshes[0], self.bench.rows)
        is_exposed = self.best is not None and self.best.exposed > MUCH * self.best.seconds
        choice = replace(FIRST[1 if is_exposed else 0], fits=True)
        layouts = [replace(layout, per_part=layout.mode == "accumulate") for layout in layouts]
        yield from (Candidate(layout, choice) for layout in list(dict.fromkeys(layouts))[:REFINED])


def step_of(note: Note) -> float:
    """Return the seconds of a candidate's step, or 0 if it has none."""
    return note.seconds or 0.0


def _smallest(notes: Iterable[Note]) -> list[Note]:
    """Return the candidates with the smallest peaks, one of each strategy."""
    smallest: dict[Choice, Note] = {}
    for note in sorted(notes, key=lambda note: (note.peak_bytes or 0, step_of(note))):
        smallest.setdefault(note.candidate.choice, note)
    return list(smallest.values())[:REFINED]


def _gathers(candidate: Candidate) -> bool:
    """Return whether presets gather the parameters of a candidate (ZeRO-3)."""
    return any(pin.preset == "zero3" for pin in candidate.choice.pins)


def _rows_split(candidate: Candidate) -> int:
    """Return the number of devices over which the presets of a candidate split the rows of the batch."""
    sizes = {axis.name: axis.size for axis in candidate.layout.mesh.spatial}
    pins = (pin for pin in candidate.choice.presets if pin.preset != "tp")
    return prod(sizes[axis] for pin in pins for axis in pin.axes or ())


def _least_step(note: Note) -> float:
    """Return the seconds that a candidate may take with fewer activations, which leave a pipeline more schedules."""
    return step_of(note) / FAR if note.candidate.layout.mode == "pipeline" else step_of(note)


def _overshoot(note: Note) -> float:
    return (note.peak_bytes or 0) / note.memory_bytes


def _keeping(candidate: Candidate, part: float) -> Candidate:
    return replace(candidate, layout=replace(candidate.layout, keep=part))


def _part_kept(note: Note) -> float:
    return note.candidate.layout.keep
