"""Runs of passes in sequence, with the time and verification of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from .errors import OpFailure, PassError
from .pipeline_spec import parse_pipeline, pass_text
from .registry import PassFactory
from .verification import first_fault, is_same, state_of

Observer: TypeAlias = Callable[[ModulePass, ModuleOp], None]


@dataclass(frozen=True)
class Pipeline:
    """Passes in the order that they run; `opt-tool --pass-pipeline` takes the text form."""

    passes: tuple[ModulePass, ...]

    @staticmethod
    def of(*parts: ModulePass | str | Iterable[ModulePass]) -> Pipeline:
        """Return the pipeline of passes, of texts that name passes, and of sequences of passes, in this order."""
        return Pipeline(tuple(single for part in parts for single in _passes_of(part)))

    @staticmethod
    def parse(text: str, available: Mapping[str, PassFactory] | None = None) -> Pipeline:
        """
        Return the passes that `text` names, from `available`; by default ours, xDSL's own and the named pipelines.

        Raises:
            PipelineError: `text` names no pipeline; the error points at the wrong part.
        """
        return Pipeline(_parsed(text) if available is None else parse_pipeline(text, available))

    def __iter__(self) -> Iterator[ModulePass]:
        return iter(self.passes)

    def __str__(self) -> str:
        """Return the text form, which `parse` reads; options with default values are left out."""
        return ",".join(map(pass_text, self.passes))


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[ModulePass, ...]:
    """Parse a text once, for all candidates of a search."""
    return parse_pipeline(text)


def _passes_of(part: ModulePass | str | Iterable[ModulePass]) -> Iterable[ModulePass]:
    if isinstance(part, str):
        return _parsed(part)
    return (part,) if isinstance(part, ModulePass) else part


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    verify_each: bool = True,
    on_before: Observer | None = None,
    on_after: Observer | None = None,
) -> dict[str, float]:
    """
    Run `passes` on `module` in place and return the seconds of each by name, summed for a pass that runs twice.

    `on_before` and `on_after` are called with the module around every pass, outside the timing; `on_after` only if the
    pass succeeded and, with `verify_each`, left valid IR. The module is verified only after passes that change it.
    PassError names the pass that failed.
    """
    seconds: dict[str, float] = {}
    valid: list[object] = []
    for step in passes:
        if on_before is not None:
            on_before(step, module)
        start = perf_counter()
        _apply(ctx, module, step)
        seconds[step.name] = seconds.get(step.name, 0.0) + perf_counter() - start
        if verify_each and not is_same(state := state_of(module), valid):
            if fault := first_fault(module):
                raise PassError(step.name, "invalid", fault.message, fault.op)
            valid = state
        if on_after is not None:
            on_after(step, module)
    return seconds


def run_pipeline(
    ctx: Context,
    module: ModuleOp,
    pipeline: str | Pipeline,
    *,
    available: Mapping[str, PassFactory] | None = None,
    verify_each: bool = True,
    on_before: Observer | None = None,
    on_after: Observer | None = None,
) -> dict[str, float]:
    """
    Run the passes of `pipeline`, as `run_passes` does.

    Passes of a text come from `available`, by default ours and xDSL's own. PipelineError says what is wrong with the
    text, before any pass has run.
    """
    return run_passes(
        ctx,
        module,
        (Pipeline.parse(pipeline, available) if isinstance(pipeline, str) else pipeline).passes,
        verify_each=verify_each,
        on_before=on_before,
        on_after=on_after,
    )


def replace_module(module: ModuleOp, other: ModuleOp) -> None:
    """Move the ops and attributes of another module into a module; the other module becomes empty."""
    for inner in list(module.ops):
        inner.detach()
        inner.erase(safe_erase=False)
    for inner in list(other.ops):
        inner.detach()
        module.body.block.add_op(inner)
    module.attributes = other.attributes


def _apply(ctx: Context, module: ModuleOp, each: ModulePass) -> None:
    try:
        each.apply(ctx, module)
    except (OpFailure, PassError) as error:
        raise PassError(each.name, "failed", str(error), error.op) from error
    except DiagnosticException as error:
        raise PassError(each.name, "failed", str(error)) from error
    except Exception as error:
        raise PassError(each.name, "crashed", f"{type(error).__name__}: {error}") from error
