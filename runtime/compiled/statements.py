"""
The statements of a program: which of them only compute, and which names they use.

A program is straight-line calls (`lowering.codegen.check_program`). A statement computes if it assigns the results of
torch ops, and of a few functions of the runtime, on tensors. Other statements are collectives, transfers, updates by
fused kernels, random draws (their seed is a number on the host), ops of other libraries, and calls of the program's own
functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_RUNTIME = frozenset({"attention", "attention_backward", "part_of"})
"""Functions of the runtime that only call torch ops, without loops over rows or reads of numbers from tensors."""

_LOCAL = frozenset({"slice", "partial"})
"""Methods of a communicator that do not communicate."""

_TORCH = frozenset({"add", "cat", "full", "maximum", "minimum"})
_METHODS = frozenset({"add_", "clone", "contiguous", "reshape"})
_GLOBAL = frozenset({"SIZES", "aten", "torch", "rt", "comm"})
"""Names that every function of a program can use."""


@dataclass(frozen=True)
class Read:
    """
    A value that a statement reads.

    Args:
        text: source text of the expression: a name, or an element of a list such as `h[2][14]`.
        name: the variable in the expression.
    """

    node: ast.expr
    text: str
    name: str


def is_deletion(statement: ast.stmt) -> bool:
    """Whether a statement only deletes names."""
    return isinstance(statement, ast.Delete)


def computes(statement: ast.stmt) -> bool:
    """Whether a statement only computes."""
    if not isinstance(statement, ast.Assign) or not all(map(_is_of_names, statement.targets)):
        return False
    nodes = list(ast.walk(statement.value))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    is_plain = not any(isinstance(node, ast.Starred | ast.Slice) for node in nodes)
    return bool(calls) and is_plain and all(map(_is_compute, calls))


def added(statement: ast.stmt) -> list[str]:
    """Return the names that a statement adds to the sums over parts (`sums.add(a, b)`); none for other statements."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add"):
        return []
    return [node.id for value in call.args for node in ast.walk(value) if isinstance(node, ast.Name)]


def written(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns."""
    return [node.id for node in _names(statement) if isinstance(node.ctx, ast.Store)]


def deleted(statement: ast.stmt) -> list[str]:
    """Return the names that a statement deletes."""
    return [node.id for node in _names(statement) if isinstance(node.ctx, ast.Del)]


def needed(statement: ast.stmt) -> list[str]:
    """Return the names that must be defined before a statement, because it reads or deletes them."""
    return [node.id for node in _names(statement) if not isinstance(node.ctx, ast.Store)]


def reads(node: ast.AST) -> Iterator[Read]:
    """Yield the values that a computing statement reads."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            if name not in _GLOBAL:
                yield Read(node, name, name)
        case ast.Subscript() if (name := _list_of(node)) is not None and name not in _GLOBAL:
            yield Read(node, ast.unparse(node), name)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from reads(child)


def _list_of(node: ast.expr) -> str | None:
    """Return the list that an expression indexes by constants."""
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _names(statement: ast.stmt) -> Iterator[ast.Name]:
    return (node for node in ast.walk(statement) if isinstance(node, ast.Name))


def _is_of_names(target: ast.expr) -> bool:
    names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return all(isinstance(name, ast.Name) for name in names)


def _is_compute(node: ast.Call) -> bool:
    match ast.unparse(node.func).split("."):
        case ["aten", _, _] | ["float"]:
            return True
        case ["torch", name]:
            return name in _TORCH
        case ["rt", name]:
            return name in _RUNTIME
        case ["comm", name]:
            return name in _LOCAL
        case [_, *_, name]:
            return name in _METHODS
        case _:
            return False
