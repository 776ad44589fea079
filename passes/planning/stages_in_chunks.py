"""The best pipeline with stages of two chunks (`partition-stages{chunks=2}`), judged as all candidates are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .candidates import Candidate
from .notes import Note, Refused
from .solutions import Finished
from .workbench import Workbench

NEAR = 1.25
"""How many times the fastest step that of a pipeline may take for it to be tried with stages of two chunks."""


def best_pipeline(notes: Iterable[Note], fastest: float) -> Candidate | None:
    """
    The fastest pipeline that fits, of those that were simulated; None where all take much longer than the fastest step.

    Args:
        fastest: its seconds.
    """
    simulated = (note for note in notes if note.exposed is not None and note.why != "does not fit")
    pipelines = [
        (note.seconds, note.candidate)
        for note in simulated
        if note.seconds is not None and note.seconds < NEAR * fastest and note.candidate.layout.mode == "pipeline"
    ]
    return min(pipelines, key=lambda each: each[0])[1] if pipelines else None


def in_chunks(bench: Workbench, candidate: Candidate) -> Finished | None:
    """
    A pipeline with stages of up to two chunks, under the fastest schedule that fits; None where it has too few layers.

    Args:
        bench: of the whole step, with the activations that the candidate keeps.
    """
    layout = replace(candidate.layout, chunks=2, schedule="auto", chunked=False)
    try:
        (found,) = bench.finish(bench.solve(replace(candidate, layout=layout)))
    except Refused:
        return None
    return found
