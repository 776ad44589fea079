"""The best plan with the prefetch and the buckets of the shortest step (`choose-overlap`)."""

from __future__ import annotations

from dataclasses import replace

from .solutions import Finished, Solved
from .workbench import Refused, Workbench

WORTH = 0.01
"""What part of a step the communication that nothing hides must be, for another overlap to be looked for."""


def tuned(bench: Workbench, solved: Solved, best: Finished) -> Finished | None:
    """
    The best candidate with its overlap chosen by simulation; None where there is too little to gain, or stages, whose
    program is not a step before it has a schedule.

    Args:
        bench: of the whole step, with the activations that the candidate keeps.
        solved: its strategy.
    """
    layout = replace(best.candidate.layout, tuned=True)
    if layout.mode == "pipeline" or best.exposed < WORTH * best.seconds:
        return None
    try:
        (found,) = bench.finish(replace(solved, candidate=replace(best.candidate, layout=layout)))
    except Refused:
        return None
    return found
