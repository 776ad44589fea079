"""Reading of IR files as modules, with errors reported as by `opt-tool`."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.lexer import Input

from ..passes.reading import InvalidModuleError, ReadModule, TextError, read_module
from .diagnostics import DiagnosticError
from .explain import invalid_input, parse_diagnostic
from .source_files import read_source
from .universe import UNIVERSE


def full_context() -> Context:
    """Return a context with xDSL's dialects and ours."""
    ctx = Context()
    for name, load in {**get_all_dialects(), **UNIVERSE.all_dialects}.items():
        ctx.register_dialect(name, load)
    return ctx


def read(ctx: Context, source: Input[str]) -> ReadModule:
    """Return the verified module in a text, with the spans of its ops; a DiagnosticError describes an invalid text."""
    try:
        return read_module(ctx, source)
    except TextError as error:
        raise DiagnosticError(parse_diagnostic(error.error, source, error.parser, ctx)) from error.error
    except InvalidModuleError as error:
        raise DiagnosticError(invalid_input(error.fault, source, error.spans)) from error


def load_module(path: str) -> ModuleOp:
    """Return the verified module in a file; a DiagnosticError describes an invalid file."""
    return read(full_context(), read_source(path)).module
