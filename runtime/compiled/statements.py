"""
The statements of a program: which of them compute and do nothing else, and which names they use.

A program is straight-line calls (`lowering.codegen.check_program`). A statement computes if it assigns what ops of
torch, and a few functions of the runtime, make of tensors. Others are collectives, transfers, updates by fused kernels,
random draws (their seed is a number on the host), ops of other libraries, and calls of the program's own functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_RUNTIME = frozenset({"attention", "attention_backward", "part_of"})
"""Functions of the runtime that call ops of torch, and neither loop over rows nor read numbers."""

_LOCAL = frozenset({"slice", "partial"})
"""Methods of a communicator that do not communicate."""

_TORCH = frozenset({"add", "cat", "full", "maximum", "minimum"})
_METHODS = frozenset({"add_", "clone", "contiguous", "reshape"})
_GLOBAL = frozenset({"SIZES", "aten", "torch", "rt", "comm"})
"""Names that all functions of a program know."""


@dataclass(frozen=True)
class Read:
    """
    A value that a statement reads.

    Args:
        node: the expression.
        text: what it says: a name, or an element of a list such as `h[2][14]`.
        name: the variable in it.
    """

    node: ast.expr
    text: str
    name: str


def is_deletion(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but delete names."""
    return isinstance(statement, ast.Delete)


def computes(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but compute."""
    if not isinstance(statement, ast.Assign) or not all(map(_is_of_names, statement.targets)):
        return False
    nodes = list(ast.walk(statement.value))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    is_plain = not any(isinstance(node, ast.Starred | ast.Slice) for node in nodes)
    return bool(calls) and is_plain and all(map(_is_compute, calls))


def written(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns."""
    return [node.id for node in _names(statement) if isinstance(node.ctx, ast.Store)]


def deleted(statement: ast.stmt) -> list[str]:
    """The names that it deletes."""
    return [node.id for node in _names(statement) if isinstance(node.ctx, ast.Del)]


def needed(statement: ast.stmt) -> list[str]:
    """The names that have to be there before it, to be read or deleted."""
    return [node.id for node in _names(statement) if not isinstance(node.ctx, ast.Store)]


def reads(node: ast.AST) -> Iterator[Read]:
    """The values that are read in a statement that computes."""
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
    """The list that an expression is an element of, at a place that is written down."""
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
