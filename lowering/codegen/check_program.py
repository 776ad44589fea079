"""
Check that an emitted program is valid Python and has only the kinds of statements that emission writes.

A program is data and straight-line code: it assigns, calls, loops over the parts of a batch, deletes and returns. It
calls torch ops, the runtime, the communicator, its own functions, and a few methods of tensors. If text of the IR
became code in spite of `python_text`, the program would contain other code, and is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_IMPORTS = frozenset({"import torch", "from shardwright import runtime as rt"})

_NODES = (
    *(ast.Assign, ast.Delete, ast.Return, ast.Expr, ast.FunctionDef, ast.arguments, ast.arg, ast.expr_context),
    *(ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.Subscript, ast.Slice, ast.Starred),
    *(ast.Tuple, ast.List, ast.Dict, ast.IfExp, ast.Compare, ast.NotIn, ast.UnaryOp, ast.USub, ast.BinOp, ast.Mult),
    *(ast.Module, ast.For, ast.If, ast.Eq, ast.Import, ast.ImportFrom, ast.alias),
)
"""The syntax nodes of programs; `_faults` restricts the nodes in the last line further."""

_CALLED = re.compile(
    r"aten\.\w+\.\w+|torch\.ops\.\w+\.\w+\.\w+|torch\.(add|cat|full|maximum|minimum)|rt\.Mesh\.of|(rt|comm)\.[A-Za-z]\w*"
)
"""Allowed calls: ops, and functions of torch, the runtime and the communicator."""

_STEP = re.compile(r"step\d*")
"""The functions that may take any number of arguments."""

_ROOTS = frozenset({"aten", "torch", "rt", "comm"})

_METHODS = frozenset({"add", "add_", "clear", "clone", "contiguous", "next_part", "over", "reshape", "totals"})
"""Allowed methods of tensors, lists of tensors, sums over parts, and a mesh."""

_FUNCTIONS = frozenset({"float", "range"})

_MAIN = frozenset({"rt.main(PLAN, step)", "rt.launch(STAGES)"})


class ProgramTextError(ValueError):
    """A text that is not a valid program; the message names the line and the fault."""


def check_program(text: str) -> None:
    """
    Check the text of a program.

    Raises:
        ProgramTextError: the text is not Python, or contains code that emission never writes.
    """
    try:
        tree = ast.parse(text, "<program>")
        compile(tree, "<program>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProgramTextError(f"is not Python: {error}") from error
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if (fault := next(_faults(node, own), None)) is not None:
            line = f"line {node.lineno} " if isinstance(node, ast.expr | ast.stmt) else ""
            raise ProgramTextError(f"{line}{fault}, which is not allowed in a program of shardwright")


def _faults(node: ast.AST, own: set[str]) -> Iterator[str]:
    match node:
        case ast.Import() | ast.ImportFrom():
            if ast.unparse(node) not in _IMPORTS:
                yield f"says '{ast.unparse(node)[:60]}'"
        case ast.If():
            body = [ast.unparse(statement) for statement in node.body]
            if ast.unparse(node.test) != "__name__ == '__main__'" or len(body) != 1 or body[0] not in _MAIN:
                yield "branches"
        case ast.FunctionDef():
            arguments = node.args
            listed = arguments.vararg is not None and not _STEP.fullmatch(node.name)
            if node.decorator_list or arguments.defaults or listed or arguments.kwarg or arguments.kwonlyargs:
                yield "has a function with more than names of arguments"
        case ast.For():
            if not (isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range"):
                yield "loops over more than the parts of a batch"
        case ast.Call():
            yield from _faults_of_call(node.func, own)
        case ast.Attribute():
            if not isinstance(node.value, ast.Attribute | ast.Name | ast.Call | ast.Subscript):
                yield "takes an attribute of something else than a value"
        case _:
            if not isinstance(node, _NODES):
                yield f"has a {type(node).__name__}"


def _faults_of_call(function: ast.expr, own: set[str]) -> Iterator[str]:
    if isinstance(function, ast.Name):
        if function.id not in own | _FUNCTIONS:
            yield f"calls '{function.id}'"
        return
    if not isinstance(function, ast.Attribute):
        yield "calls a computed value"
        return
    names = _chain(function)
    allowed = _CALLED.fullmatch(".".join(names)) if names[0] in _ROOTS else len(names) == 2 and names[1] in _METHODS
    if not allowed:
        yield f"calls '{'.'.join(names)}'"


def _chain(function: ast.expr) -> list[str]:
    """Split `a.b.c` into names; the first is empty if the expression does not begin with a name."""
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.insert(0, function.attr)
        function = function.value
    return [function.id if isinstance(function, ast.Name) else "", *names]
