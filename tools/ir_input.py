"""IR files as modules, with what is wrong with them said as `opt-tool` says it."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.lexer import Input

from ..dialects.text import IRParser
from ..passes.verification import first_fault
from .diagnostics import DiagnosticError
from .explain import invalid_input, parse_diagnostic
from .source_files import read_source
from .universe import UNIVERSE


def full_context() -> Context:
    """A context that knows xDSL's dialects and ours."""
    ctx = Context()
    for name, load in {**get_all_dialects(), **UNIVERSE.all_dialects}.items():
        ctx.register_dialect(name, load)
    return ctx


def parsed(ctx: Context, source: Input[str]) -> tuple[IRParser, ModuleOp]:
    """A module and the parser that read it; DiagnosticError says what is wrong with the text."""
    parser = None
    try:
        parser = IRParser(ctx, source.content, source.name)
        return parser, parser.parse_module()
    except Exception as error:
        raise DiagnosticError(parse_diagnostic(error, source, parser, ctx)) from error


def load_module(path: str) -> ModuleOp:
    """The module in a file, verified; DiagnosticError says what is wrong with it."""
    source = read_source(path)
    parser, module = parsed(full_context(), source)
    if fault := first_fault(module):
        raise DiagnosticError(invalid_input(fault, source, parser.op_spans))
    return module
