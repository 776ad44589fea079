"""
Plant faults in the code of the product, one at a time, and count how many of them the tests notice.

    python benchmarks/planted_faults.py [--count N] [--seed S] [--folders FOLDER ...] [--tests N]

Each fault changes one expression or removes one call in a function. Faults are drawn at random, as many from each
folder as its part of the lines. A fault is planted in a copy of the checkout, and test files run there until one fails:
first the files that name the module or its definitions most often, then the files for modules that import it. A fault
that none of them notices is planted again for the cases that run only with `--thorough`. A fault that is not noticed
then is listed with its line; it may be no fault, as a limit that only saves time.
"""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from _report import ROOT, Rows, arguments, parsed, progress, publish

FOLDERS = ("ir", "dialects", "passes", "lowering", "runtime", "api", "models", "tools")

TOO_LONG = 600
"""Seconds after which the tests of a fault count as failed: the fault makes something endless."""

_COMPARISONS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_PAIRS: tuple[tuple[type[Any], type[Any]], ...] = (*_COMPARISONS, (ast.Add, ast.Sub), (ast.And, ast.Or))
SWAPPED: dict[type[Any], type[Any]] = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
"""Operators, each with the operator that a fault has in its place."""

THOROUGH = ("--thorough", "-m", "thorough")
"""Options of pytest for the tests that run only with `--thorough`."""

RENAMED = {"min": "max", "max": "min", "any": "all", "all": "any"}
"""Functions, each with the function that a fault calls in its place."""


@dataclass(frozen=True)
class Fault:
    """
    A fault in a file.

    Args:
        line: line of the fault, from 1.
        before, after: the code that the fault changes, and its result.
        text: text of the file with the fault.
    """

    file: str
    line: int
    before: str
    after: str
    text: str


def main() -> None:
    """Plant the faults, print a table by folder, and list the faults that no test noticed."""
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=60, help="number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, choices=FOLDERS)
    parser.add_argument("--tests", type=int, default=12, help="largest number of test files for a fault")
    options = parsed(parser, count=1, folders=["ir"])
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy(Path(folder))
        faults = _faults(copy, options.count, options.seed, options.folders)
        rows = [_row(fault, copy, options.tests) for fault in faults]
    publish("planted_faults", rows)
    publish("planted_faults_by_folder", _by_folder(rows))


def _faults(root: Path, count: int, seed: int, folders: Sequence[str]) -> Iterator[Fault]:
    """Yield faults at random places of a checkout, each in another file."""
    draw = random.Random(seed)
    files = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    sizes = {path: path.read_text().count("\n") for path in files}
    drawn: set[Path] = set()
    while len(drawn) < count:
        (path,) = draw.choices(files, [sizes[path] for path in files])
        faults = list(_faults_of(root, path)) if path not in drawn else []
        if faults:
            drawn.add(path)
            yield draw.choice(faults)


def _faults_of(root: Path, path: Path) -> Iterator[Fault]:
    text = path.read_text()
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            for node in (node for statement in function.body for node in ast.walk(statement)):
                for faulty in _changed(node):
                    yield _planted(str(path.relative_to(root)), text, node, ast.unparse(faulty))


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the faults of an expression or a statement itself, and none of its parts."""
    faulty: Any = deepcopy(node)
    match faulty:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED:
            faulty.ops = [SWAPPED[type(operator)]()]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in SWAPPED:
            faulty.op = SWAPPED[type(operator)]()
        case ast.Call(func=ast.Name() as called) if called.id in RENAMED:
            called.id = RENAMED[called.id]
        case ast.UnaryOp(op=ast.Not()):
            faulty = faulty.operand
        case ast.Constant(value=bool(value)):
            faulty.value = not value
        case ast.Constant(value=int(value)):
            faulty.value = value + 1
        case ast.IfExp():
            faulty.body, faulty.orelse = faulty.orelse, faulty.body
        case ast.Expr(value=ast.Call()):
            faulty = ast.Pass()
        case _:
            return
    yield faulty


def _planted(file: str, text: str, node: Any, code: str) -> Fault:
    """Return the fault that replaces the text of a node."""
    lines = text.splitlines(keepends=True)
    # Columns of a tree count bytes.
    rows = [line.encode() for line in lines]
    first, last = node.lineno - 1, node.end_lineno - 1
    before = b"".join(rows[:first]) + rows[first][: node.col_offset]
    after = rows[last][node.end_col_offset :] + b"".join(rows[last + 1 :])
    code = code if isinstance(node, ast.stmt) else f"({code})"
    text_before = ast.get_source_segment(text, node) or ""
    return Fault(file, node.lineno, text_before, code, (before + code.encode() + after).decode())


def _row(fault: Fault, copy: Path, most: int) -> dict[str, Any]:
    """Plant a fault, and return a row with the test file that notices it, or none."""
    began, tests = perf_counter(), _tests_of(copy, fault.file, most)
    python = [test for test in tests if test.endswith(".py")]
    runs = [*((test, ()) for test in tests), *((test, THOROUGH) for test in python)]
    noticed, options = next(((test, more) for test, more in runs if _notices(test, more, fault, copy)), ("", ()))
    row = {"file": f"{fault.file}:{fault.line}", "before": fault.before, "after": fault.after}
    found = {"noticed by": noticed, "only thorough": "yes" if options else ""}
    return progress({**row, "tests": len(tests), **found, "s": round(perf_counter() - began)})


def _notices(test: str, options: Sequence[str], fault: Fault, copy: Path) -> bool:
    """Return whether a test file fails with a fault, and passes without it."""
    path = copy / fault.file
    right = path.read_text()
    path.write_text(fault.text)
    fails = not _passes(test, options, copy)
    path.write_text(right)
    return fails and _passes(test, options, copy)


def _passes(test: str, options: Sequence[str], copy: Path) -> bool:
    scripts = Path(sys.executable).parent
    tool, *words = ["lit", "-q"] if test.endswith(".mlir") else ["pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command = [str(scripts / tool), *words, *options, test]
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "PATH": path, "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TOO_LONG, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode in (0, 5)  # 5: all tests of the file are left out


def _copy(folder: Path) -> Path:
    """Return a copy of the checkout, which Python finds as the package if `PYTHONPATH` has its folder."""
    copy = folder / "shardwright"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@cache
def _test_files(root: Path) -> dict[str, str]:
    """Return the texts of all test files, by their paths in the checkout."""
    tests = root / "tests"
    files = [*(tests / "filecheck").rglob("*.mlir"), *tests.rglob("test_*.py")]
    return {str(path.relative_to(root)): path.read_text(errors="replace") for path in sorted(files)}


def _tests_of(root: Path, file: str, most: int) -> list[str]:
    """Return test files that name a module, or the modules that import it, directly or not; FileCheck files first."""
    tests: dict[str, None] = {}
    reached = [file]
    for module in reached:
        tests |= dict.fromkeys(_naming(root, module)[: most - len(tests)])
        reached += (user for user in _users(root).get(module, ()) if user not in reached)
        if len(tests) >= most:
            break
    return sorted(tests, key=lambda test: not test.endswith(".mlir"))


def _naming(root: Path, file: str) -> list[str]:
    """Return the test files that name a module, its pass and its definitions, the most frequent first."""
    text = (root / file).read_text()
    definitions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    passes = re.findall(r'^    name = "([\w.-]+)"$', text, re.MULTILINE)
    names = {Path(file).stem, *passes, *(name for name in definitions if not name.startswith("_"))}
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    scores = {test: len(named.findall(tested)) for test, tested in _test_files(root).items()}
    return sorted((test for test in scores if scores[test]), key=lambda test: (-scores[test], test))


@cache
def _users(root: Path) -> dict[str, list[str]]:
    """Return the modules that import each module of the product."""
    users: dict[str, list[str]] = {}
    for path in (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                module = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                for used in (module.with_suffix(".py"), *(module / f"{name.name}.py" for name in node.names)):
                    if used.is_relative_to(root) and used.exists():
                        users.setdefault(str(used.relative_to(root)), []).append(str(path.relative_to(root)))
    return users


def _by_folder(rows: Rows) -> Rows:
    """Return a row for each folder, and one for all of them."""
    table = Rows()
    for folder in (*dict.fromkeys(row["file"].split("/")[0] for row in rows), "all"):
        mine = [row for row in rows if folder in ("all", row["file"].split("/")[0])]
        noticed = [row for row in mine if row["noticed by"]]
        row = {"folder": folder, "faults": len(mine), "noticed": sum(not row["only thorough"] for row in noticed)}
        table.append(row | {"noticed with --thorough": len(noticed)})
    return table


if __name__ == "__main__":
    main()
