"""Ranges of `torch.profiler` by layer of the model, in the steps that a profiler watches and in no others."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from ..lowering.codegen.layer_ranges import with_ranges
from ..lowering.codegen.load_program import load_text
from ..runtime.executor import Executor, RankProgram
from ..runtime.stages import Stage, my_stage


class ProfiledLayers:
    """
    Lets an executor run the program with ranges while a profiler is on.

    Args:
        executor: runs the program.
        program: its text.
    """

    def __init__(self, executor: Executor, program: str) -> None:
        self._executor, self._program = executor, program
        self._plain, self._is_on = executor.main, False

    def follow_profiler(self) -> None:
        """Before each step: see whether a profiler of this process is on."""
        is_on: bool = torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]
        if is_on is not self._is_on:
            self._executor.main, self._is_on = (self._ranged if is_on else self._plain), is_on

    @cached_property
    def _ranged(self) -> RankProgram:
        """The program with ranges; made when a profiler is first seen."""
        name = f"<the program of {self._executor.plan.name}, by layer>"
        with torch.profiler.record_function("shardwright: load the program with ranges"):
            loaded = my_stage([Stage(*each) for each in load_text(with_ranges(self._program), name)])
            return replace(self._plain, function=loaded.step)
