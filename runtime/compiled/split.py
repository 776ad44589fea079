"""
Functions of a program for the computation between collectives.

A run of statements that compute becomes a function of its own, which is compiled when it is first called:

    def step(comm, w):                               @compiled
        ...                                          def step_compute_1(comm, given):
        (x,) = comm.wait(started)                        x, w = given
        a = aten.mm.default(x, w)                        given.clear()
        del x                                            a = aten.mm.default(x, w)
        b = aten.relu.default(a)                         del x
        sent = comm.start("all_reduce", (b,))  ->        b = aten.relu.default(a)
        ...                                              return (a, b)

                                                     def step(comm, w):
                                                         ...
                                                         (x,) = comm.wait(started)
                                                         given = [x, w]
                                                         del x
                                                         a, b = step_compute_1(comm, given)
                                                         sent = comm.start("all_reduce", (b,))

What a run deletes or writes over it is handed in a list that it empties, so that nobody else holds on to it.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence

from .statements import Read, computes, deleted, is_deletion, needed, reads, written

DECORATOR = "compiled"
"""What the text calls that by which the functions are compiled; whoever runs it has to give it that name."""

_LEAST = 2
"""Statements of a run that is worth a function."""

_GIVEN = "given"


def with_compute_functions(program: str) -> str:
    """The text of a program in which the computation between collectives is in functions of its own."""
    tree = ast.parse(program)
    body: list[ast.stmt] = []
    for each in tree.body:
        if isinstance(each, ast.FunctionDef):
            body += _split(each)
        body.append(each)
    tree.body = body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _split(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """The functions of the runs of a function, which gets calls of them in their place."""
    body: list[ast.stmt] = []
    number = 0
    for run, rest in _runs(function.body):
        if sum(map(computes, run)) < _LEAST:
            body += run
            continue
        number += 1
        made = _ComputeRun(f"{function.name}_compute_{number}", run, rest)
        yield made.function()
        body += made.call()
    function.body = body


def _runs(body: Sequence[ast.stmt]) -> Iterator[tuple[Sequence[ast.stmt], Sequence[ast.stmt]]]:
    """The runs of statements that compute or delete, and single other statements; of each what follows it."""
    at = 0
    while at < len(body):
        end = at
        while end < len(body) and (computes(body[end]) or is_deletion(body[end])):
            end += 1
        end = max(end, at + 1)
        yield body[at:end], body[end:]
        at = end


class _ComputeRun:
    """
    A run of statements that compute or delete.

    Args:
        name: of the function that it becomes.
        rest: what follows it.
    """

    def __init__(self, name: str, body: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> None:
        self._name = name
        self._used = {node.id for each in body for node in ast.walk(each) if isinstance(node, ast.Name)}
        self._parameters: dict[str, str] = {}
        self._taken: dict[str, None] = {}
        self._made: dict[str, None] = {}
        self._body: list[ast.stmt] = []
        for statement in body:
            if is_deletion(statement):
                self._delete(deleted(statement))
            else:
                self._compute(statement)
        later = {name for statement in rest for name in needed(statement)}
        self._results = [name for name in self._made if name in later]

    def _compute(self, statement: ast.stmt) -> None:
        """Add a statement, in which elements of lists are parameters."""
        statement = copy.deepcopy(statement)
        names = {id(read.node): self._parameter(read) for read in reads(statement) if read.name not in self._made}
        _Renamed(names).visit(statement)
        self._body.append(statement)
        for name in written(statement):
            if name in self._parameters and name not in self._made:
                self._taken[name] = None
            self._made[name] = None

    def _parameter(self, read: Read) -> str:
        """The parameter for a value: its name, or for an element of a list a new one."""
        if read.text not in self._parameters:
            own = re.sub(r"\W+", "_", read.text.rstrip("]"))
            while own != read.text and own in self._used:
                own += "_"
            self._used.add(own)
            self._parameters[read.text] = own
        return self._parameters[read.text]

    def _delete(self, names: Sequence[str]) -> None:
        """Delete what was made here, and what was given, which the caller does not hold on to."""
        gone: list[str] = []
        for name in names:
            if name in self._made:
                del self._made[name]
                gone.append(name)
            else:
                self._taken[name] = None
                gone += [own for text, own in self._parameters.items() if text.partition("[")[0] == name]
        if gone:
            self._body.append(ast.Delete([ast.Name(name, ast.Del()) for name in gone]))

    def function(self) -> ast.stmt:
        """The function, of a communicator and a list of values."""
        text = [f"@{DECORATOR}", f"def {self._name}(comm, {_GIVEN}):", *self._head(), f"    return {self._tuple()}"]
        made = ast.parse("\n".join(text)).body[0]
        assert isinstance(made, ast.FunctionDef)
        made.body[-1:-1] = self._body
        return made

    def _head(self) -> list[str]:
        if not self._parameters:
            return []
        return [f"    [{', '.join(self._parameters.values())}] = {_GIVEN}", f"    {_GIVEN}.clear()"]

    def _tuple(self) -> str:
        return f"({', '.join(self._results)}{',' if len(self._results) == 1 else ''})"

    def call(self) -> list[ast.stmt]:
        """What takes the place of the run."""
        lines = [f"{_GIVEN} = [{', '.join(self._parameters)}]"]
        if self._taken:
            lines.append(f"del {', '.join(self._taken)}")
        target = f"{self._tuple()} = " if self._results else ""
        lines.append(f"{target}{self._name}(comm, {_GIVEN})")
        return ast.parse("\n".join(lines)).body


class _Renamed(ast.NodeTransformer):
    """Puts names in the place of expressions, by the identity of their nodes."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST:
        name = self._names.get(id(node))
        return ast.Name(name, ast.Load()) if name is not None else self.generic_visit(node)
