"""Ranges by layer of the model, only in the steps that a profiler or a recorder watches."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from .executor import Executor, RankProgram
from .layer_ranges import with_ranges
from .place import profiler_on
from .program_text import run_text
from .step_recorder import RECORDING


class ProfiledLayers:
    """
    Makes an executor run the program with ranges while torch's profiler or a recorder of steps is on.

    Args:
        executor: executor of the program.
        program: source text of the program.
    """

    def __init__(self, executor: Executor, program: str) -> None:
        self._executor, self._program = executor, program
        self._plain, self._is_on = executor.main, False

    def follow_profiler(self) -> None:
        """Choose the program with or without ranges; call this before each step."""
        is_on = profiler_on() or RECORDING.recorder is not None
        if is_on is not self._is_on:
            self._executor.main, self._is_on = (self._ranged if is_on else self._plain), is_on

    @cached_property
    def _ranged(self) -> RankProgram:
        """The program with ranges, built at first use."""
        name = f"<the program of {self._executor.plan.name}, by layer>"
        with torch.profiler.record_function("shardwright: load the program with ranges"):
            loaded = run_text(with_ranges(self._program), name)
            return replace(self._plain, function=loaded[self._plain.function.__name__])
