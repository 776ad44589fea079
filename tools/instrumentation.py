"""Instrumentation of a pipeline: dumps of the IR around passes, numerical checks, a table of times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TextIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException, VerifyException

from ..dialects.text import module_text
from ..passes.errors import PassError
from .diagnostics import Diagnostic, DiagnosticError
from .opt_arguments import TOOL


@dataclass
class IRDumps:
    """
    A writer of the IR to `out` before and after selected passes, as mlir-opt's `--mlir-print-ir-*` options.

    `before` and `after` name single passes. With `only_changes` the IR after a pass is written only if the pass changed
    it; this applies to every pass unless another option selects passes.
    """

    out: TextIO
    before_all: bool = False
    after_all: bool = False
    only_changes: bool = False
    before: Collection[str] = ()
    after: Collection[str] = ()
    to_text: Callable[[ModuleOp], str] = module_text
    _given: str = field(default="", init=False)

    def on_before(self, each: ModulePass, module: ModuleOp) -> None:
        """Write the IR before `each`."""
        if self.only_changes:
            self._given = self.to_text(module)
        if self.before_all or each.name in self.before:
            self._write(f"Before {each}", self.to_text(module))

    def on_after(self, each: ModulePass, module: ModuleOp) -> None:
        """Write the IR after `each`."""
        if not self._wants_after(each.name):
            return
        text = self.to_text(module)
        if not self.only_changes or text != self._given:
            self._write(f"After {each}", text)

    def on_failure(self, pass_name: str, module: ModuleOp) -> None:
        """Write the IR after a failed pass, in the generic form, because its custom form may not be printable."""
        if not self._wants_after(pass_name):
            return
        try:
            text = module_text(module, generic=True)
        except Exception as error:
            text = f"// cannot be printed: {type(error).__name__}: {error}\n"
        self._write(f"After {pass_name} Failed", text)

    def _wants_after(self, pass_name: str) -> bool:
        by_change = self.only_changes and not self.after
        return self.after_all or by_change or pass_name in self.after

    def _write(self, when: str, text: str) -> None:
        self.out.write(f"// -----// IR Dump {when} //----- //\n{text}\n")


@dataclass
class NumericsCheck:
    """A check that runs the module before and after every pass on the same random inputs and compares the results."""

    seed: int
    _given: ModuleOp | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # This check needs torch, whose import must not delay other uses of the tool.
        try:
            self._check = import_module("..lowering.interpreter.verify_numerics", __package__).check_pass
        except ImportError as error:
            message = f"--verify-numerics runs the IR on torch, which cannot be loaded: {error}"
            raise DiagnosticError(Diagnostic(message, TOOL)) from error

    def on_before(self, each: ModulePass, module: ModuleOp) -> None:
        """Keep the module before `each`."""
        self._given = module.clone()

    def on_after(self, each: ModulePass, module: ModuleOp) -> None:
        """Compare the module before `each` with the module after it; PassError if the results differ."""
        try:
            self._check(self._given, module, each.name, self.seed)
        except PassError:
            raise
        except (DiagnosticException, RuntimeError, MemoryError, ValueError, OverflowError) as error:
            details = str(error).strip() or type(error).__name__
            # An op or type without an implementation, or a size that torch rejects, is not a fault of the pass.
            if isinstance(error, DiagnosticException) and not isinstance(error.__cause__ or error, VerifyException):
                raise PassError(each.name, "unsound", details) from error
            first = details.partition("\n")[0]
            raise PassError(
                each.name, "failed", f"the module cannot be interpreted to compare its results: {first}"
            ) from error


def timing_report(seconds: Mapping[str, float], total: float) -> str:
    """Return the table that `--mlir-timing` prints: the seconds of each step, and the rest."""
    rule = f"===-{'':-<73}-==="
    steps = {**seconds, "Rest": total - sum(seconds.values())}
    rows = "".join(f"{_timing_row(taken, total)}  {name}\n" for name, taken in steps.items())
    return (
        f"{rule}\n{'... Execution time report ...':^79}\n{rule}\n"
        f"  Total Execution Time: {total:.4f} seconds\n\n"
        f"  ----Wall Time----  ----Name----\n{rows}{_timing_row(total, total)}  Total\n"
    )


def _timing_row(taken: float, total: float) -> str:
    share = 100 * taken / total if total else 0.0
    return f"  {taken:8.4f} ({share:5.1f}%)"
