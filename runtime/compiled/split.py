"""
Functions of a program for the computation between collectives.

Consecutive statements that compute become a separate function, which is compiled at its first call:

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

Results for the sums over the parts of a batch (`sums.add(grad)`) are added after the run that computes them. Values
that such a run deletes or overwrites are passed in a list that the function empties, so that no caller keeps them
alive.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence

from .statements import Read, added, computes, deleted, is_deletion, needed, reads, written

DECORATOR = "compiled"
"""The name of the compiling decorator in the text; the namespace that runs the text must define it."""

_LEAST = 2
"""The least number of computing statements in a run that becomes a function."""

_GIVEN = "given"


def with_compute_functions(program: str) -> str:
    """Return the text of a program with the computation between collectives moved into separate functions."""
    tree = ast.parse(program)
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            body += _split(statement)
        body.append(statement)
    tree.body = body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _split(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield a function for each run of a function's body, and replace the runs by calls."""
    body: list[ast.stmt] = []
    number = 0
    for run, rest in _runs(list(_additions_last(function.body))):
        if sum(map(computes, run)) < _LEAST:
            body += run
            continue
        number += 1
        compute_run = _ComputeRun(f"{function.name}_compute_{number}", run, rest)
        yield compute_run.function()
        body += compute_run.call()
    function.body = body


def _additions_last(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements; move the additions to sums, and the deletions of the added values, to the end of each run."""
    additions: list[ast.stmt] = []
    names: set[str] = set()
    for statement in body:
        if given := added(statement):
            additions.append(statement)
            names.update(given)
        elif is_deletion(statement):
            for name in deleted(statement):
                deletion = ast.Delete([ast.Name(name, ast.Del())])
                if name in names:
                    additions.append(deletion)
                else:
                    yield deletion
        else:
            if not computes(statement) or not names.isdisjoint(written(statement)):
                yield from additions
                additions, names = [], set()
            yield statement
    yield from additions


def _runs(body: Sequence[ast.stmt]) -> Iterator[tuple[Sequence[ast.stmt], Sequence[ast.stmt]]]:
    """Yield the runs of statements that compute or delete, and other statements singly, with the statements after."""
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
    Consecutive statements that compute or delete, to become a function.

    Args:
        rest: statements that follow the run.
    """

    def __init__(self, name: str, body: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> None:
        self._name = name
        self._used = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
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
        """Add a statement, with parameters in the place of the values that it reads from outside the run."""
        statement = copy.deepcopy(statement)
        names = {id(read.node): self._parameter(read) for read in reads(statement) if read.name not in self._made}
        _Renamed(names).visit(statement)
        self._body.append(statement)
        for name in written(statement):
            if name in self._parameters and name not in self._made:
                self._taken[name] = None
            self._made[name] = None

    def _parameter(self, read: Read) -> str:
        """Return the parameter for a value: its name, or a new name for an element of a list."""
        if read.text not in self._parameters:
            parameter = re.sub(r"\W+", "_", read.text.rstrip("]"))
            while parameter != read.text and parameter in self._used:
                parameter += "_"
            self._used.add(parameter)
            self._parameters[read.text] = parameter
        return self._parameters[read.text]

    def _delete(self, names: Sequence[str]) -> None:
        """Delete values of the run, and parameters that the caller passed in the list and no longer holds."""
        deletions: list[str] = []
        for name in names:
            if name in self._made:
                del self._made[name]
                deletions.append(name)
            else:
                self._taken[name] = None
                deletions += [own for text, own in self._parameters.items() if text.partition("[")[0] == name]
        if deletions:
            self._body.append(ast.Delete([ast.Name(name, ast.Del()) for name in deletions]))

    def function(self) -> ast.stmt:
        """Return the definition of the function of a communicator and a list of values."""
        text = [f"@{DECORATOR}", f"def {self._name}(comm, {_GIVEN}):", *self._head(), f"    return {self._tuple()}"]
        definition = ast.parse("\n".join(text)).body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.body[-1:-1] = self._body
        return definition

    def _head(self) -> list[str]:
        if not self._parameters:
            return []
        return [f"    [{', '.join(self._parameters.values())}] = {_GIVEN}", f"    {_GIVEN}.clear()"]

    def _tuple(self) -> str:
        return f"({', '.join(self._results)}{',' if len(self._results) == 1 else ''})"

    def call(self) -> list[ast.stmt]:
        """Return the statements that replace the run."""
        lines = [f"{_GIVEN} = [{', '.join(self._parameters)}]"]
        if self._taken:
            lines.append(f"del {', '.join(self._taken)}")
        target = f"{self._tuple()} = " if self._results else ""
        lines.append(f"{target}{self._name}(comm, {_GIVEN})")
        return ast.parse("\n".join(lines)).body


class _Renamed(ast.NodeTransformer):
    """Replaces expressions by names, by the identity of their nodes."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST:
        name = self._names.get(id(node))
        return ast.Name(name, ast.Load()) if name is not None else self.generic_visit(node)
