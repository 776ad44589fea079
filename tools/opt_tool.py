"""
`opt-tool`: runs passes on an IR file, as `mlir-opt` does.

Only the resulting IR goes to standard output (or to `-o`, atomically); dumps, times and errors go to standard error.
Every failure is one message with the place and the remedy, and exit code 1. This module does not import torch, so that
a small file takes a fifth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.lexer import Input

from ..dialects.text import module_text
from ..ir.garbage import kept_to_the_end
from ..passes.errors import PassError
from ..passes.pipeline import run_passes
from ..passes.pipeline_spec import PipelineError, parse_pipeline
from .diagnostics import Diagnostic, DiagnosticError, exit_code, internal_error, located, print_error
from .expected_diagnostics import unmet
from .explain import pass_diagnostic
from .instrumentation import IRDumps, NumericsCheck, timing_report
from .ir_input import SEPARATOR, full_context, is_blank, read, read_source, split_source, write_output
from .opt_arguments import TOOL, OptToolOptions, parse_arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool on a command line, by default the arguments of the process, and return its exit code."""
    if arguments is None:
        with kept_to_the_end():
            return main(sys.argv[1:])
    words = list(arguments)
    return exit_code(lambda: _run(words), "--debug-traceback" in words, _described)


def _described(error: Exception) -> Diagnostic:
    return error.diagnostic if isinstance(error, DiagnosticError) else internal_error(error, TOOL)


def _run(words: Sequence[str]) -> int:
    started = perf_counter()
    options = parse_arguments(words)
    if options.show:
        from . import catalogue

        sys.stdout.write(getattr(catalogue, f"{options.show}_text")())
        return 0
    run = _ToolRun(options, _passes(options))
    source = read_source(options.input)
    if is_blank(source):
        hint = "give a file with a module or at least one operation in it"
        raise DiagnosticError(Diagnostic("the file is empty", source.name, hint=hint))
    texts = [run.chunk(chunk) for chunk in (split_source(source) if options.split_input_file else [source])]
    if run.failures == 0:
        start = perf_counter()
        write_output(f"{SEPARATOR}\n".join(filter(None, texts)), options.output)
        run.count("Output", start)
    if options.mlir_timing:
        sys.stderr.write(timing_report(run.seconds, perf_counter() - started))
    return 1 if run.failures else 0


def _passes(options: OptToolOptions) -> tuple[ModulePass, ...]:
    """Return the passes to run, after checking that they include the passes of the --print-ir options."""
    try:
        passes = parse_pipeline(options.pass_pipeline)
    except PipelineError as error:
        place = Input(error.text, "<pass-pipeline>")
        raise DiagnosticError(located(place, error.start, error.end, error.message, hint=error.hint)) from error
    names = [each.name for each in passes]
    for name in (*options.print_ir_before, *options.print_ir_after):
        if name not in names:
            message = f"there is no pass '{name}' in the pipeline to print the IR around"
            raise DiagnosticError(Diagnostic(message, TOOL, hint=f"it runs {', '.join(names) or 'no pass'}"))
    return passes


@dataclass
class _ToolRun:
    """One run of the tool: its passes, and the failures and times in the parts of the file so far."""

    options: OptToolOptions
    passes: Sequence[ModulePass]
    failures: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """The total time of each step over all parts of the file, by name."""

    def __post_init__(self) -> None:
        options = self.options
        self.ctx = full_context(options.allow_unregistered_dialect)
        self.to_text = partial(
            module_text, generic=options.mlir_print_op_generic, locations=options.mlir_print_debuginfo, ctx=self.ctx
        )
        self.dumps = IRDumps(
            sys.stderr,
            options.print_ir_before_all,
            options.print_ir_after_all,
            options.print_ir_after_change,
            options.print_ir_before,
            options.print_ir_after,
            self.to_text,
        )
        check = [NumericsCheck(options.verify_numerics_seed)] if options.verify_numerics else []
        self.observers = [self.dumps, *check]

    def chunk(self, source: Input[str]) -> str:
        """Return the IR that the passes produce from one part of the file; if it fails, count that and return ""."""
        text, errors = "", list[Diagnostic]()
        try:
            text = "" if is_blank(source) else self._compiled(source)
        except DiagnosticError as error:
            errors = [error.diagnostic]
            if not self.options.verify_diagnostics:
                print_error(error, error.diagnostic, self.options.debug_traceback)
        if self.options.verify_diagnostics:
            errors = unmet(source.content, source.name, errors)
            print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
        self.failures += len(errors)
        return text

    def count(self, step: str, start: float) -> None:
        """Add the time since `start` to a step."""
        self.seconds[step] = self.seconds.get(step, 0.0) + perf_counter() - start

    def _compiled(self, source: Input[str]) -> str:
        start = perf_counter()
        parsed = read(self.ctx, source)
        self.count("Parser", start)
        module, spans = parsed.module, parsed.spans
        try:
            taken = run_passes(
                self.ctx,
                module,
                self.passes,
                verify_each=self.options.verify_each,
                on_before=self._on_before,
                on_after=self._on_after,
            )
        except PassError as error:
            self.dumps.on_failure(error.pass_name, module)
            raise DiagnosticError(pass_diagnostic(error, source, spans)) from error
        for name, seconds in taken.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        return self._printed(module, source)

    def _printed(self, module: ModuleOp, source: Input[str]) -> str:
        start = perf_counter()
        try:
            text = self.to_text(module)
        except Exception as error:
            message = f"the resulting IR cannot be printed: {type(error).__name__}: {error}"
            hint = "--mlir-print-op-generic may print it; --debug-traceback shows what went wrong"
            raise DiagnosticError(Diagnostic(message, source.name, hint=hint)) from error
        self.count("Output", start)
        return text

    def _on_before(self, each: ModulePass, module: ModuleOp) -> None:
        for observer in self.observers:
            observer.on_before(each, module)

    def _on_after(self, each: ModulePass, module: ModuleOp) -> None:
        for observer in self.observers:
            observer.on_after(each, module)


if __name__ == "__main__":
    sys.exit(main())
