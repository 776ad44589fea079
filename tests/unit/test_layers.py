"""The architecture: imports point down, the core does not need torch, the runtime does not need xDSL."""

import ast
import graphlib
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def folder_tables() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the folders that each folder may import by docs/architecture.md: top-level folders, and subfolders."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    tables: list[dict[str, set[str]]] = []
    for block in text.partition("## The folders")[2].partition("\n## ")[0].split("\n\n"):
        rows = re.findall(r"^\| `([\w/]+)` \|.*\| (.+) \|$", block, re.MULTILINE)
        if rows:
            tables.append({folder: set(re.findall(r"`([\w/]+)`", allowed)) for folder, allowed in rows})
    top, sub = tables
    return top, sub


MAY_IMPORT, MAY_IMPORT_WITHIN = folder_tables()
# Modules that every subfolder of their top-level folder may import.
FOR_ALL = {"passes/errors"}
# Folder -> the libraries that it may not import, not even inside a function.
MAY_NOT_IMPORT: dict[str, set[str]] = {
    "ir": {"torch", "xdsl"},
    "dialects": {"torch"},
    "passes": {"torch"},
    "runtime": {"xdsl"},
}
MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 60

FILES = sorted(path for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(here: tuple[str, ...], source: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """
    Yield the line and the target of every import in a module of the package `here`, a path from the root.

    A target is a path too: `("shardwright", "ir", "mesh")` in this package, `("torch", "nn")` in others.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ("shardwright", *here)[: len(here) + 2 - node.level] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            yield from ((node.lineno, (*base, *module, alias.name)) for alias in node.names)


def complaints(here: tuple[str, ...], source: str) -> list[str]:
    """Return the imports of one module that break the rules of its folder, each with its line."""
    folder = here[0]
    found: list[str] = []
    for line, target in imports(here, source):
        library = target[0]
        if library in MAY_NOT_IMPORT.get(folder, set()):
            found.append(f"line {line}: {folder} imports {library}")
        if library in MAY_IMPORT:
            found.append(f"line {line}: {library!r} bare loads classes twice; import it relatively")
        if library == "shardwright" and len(target) > 1 and target[1] not in {folder, *MAY_IMPORT[folder]}:
            found.append(f"line {line}: {folder} imports {target[1]}, which lies above it")
    return found


def test_imports_point_down():
    by_file = {name_of(path): complaints(path.relative_to(ROOT).parent.parts, path.read_text()) for path in FILES}
    assert {name: found for name, found in by_file.items() if found} == {}


@pytest.mark.parametrize(
    ("here", "source"),
    [
        (("ir",), "from ..dialects import spmd"),
        (("ir",), "from .. import dialects"),
        (("passes", "search"), "from ...lowering.export import emit"),
        (("passes",), "def f():\n    import torch.fx"),
        (("runtime",), "from xdsl.ir import Operation"),
        (("api",), "from ir import mesh"),
        (("lowering",), "from shardwright.api import parallelize"),
    ],
)
def test_planted_import_is_found(here: tuple[str, ...], source: str):
    assert len(complaints(here, source)) == 1


@pytest.mark.parametrize(
    ("here", "source"),
    [
        (("passes", "search"), "from ...ir.mesh import Mesh\nfrom . import a\nfrom ..analysis import b"),
        (("runtime",), "import torch\nfrom ..ir import mesh"),
        (("dialects",), "from xdsl import ir"),
    ],
)
def test_good_imports_are_accepted(here: tuple[str, ...], source: str):
    assert complaints(here, source) == []


@cache
def module_imports() -> dict[str, set[str]]:
    """Return the modules that each module of the package imports, as paths without suffixes, also for types only."""
    modules = {name_of(path).removesuffix(".py") for path in FILES}
    found: dict[str, set[str]] = {}
    for path in FILES:
        targets = ("/".join(target[1:]) for _, target in imports(path.relative_to(ROOT).parent.parts, path.read_text()))
        known = {next((each for each in (name, name.rpartition("/")[0]) if each in modules), None) for name in targets}
        found[name_of(path).removesuffix(".py")] = {each for each in known if each is not None}
    return found


def strays(imported: dict[str, set[str]]) -> list[str]:
    """Return the imports between subfolders of a top-level folder that the map does not allow."""
    found: list[str] = []
    for module, targets in imported.items():
        folder = module.rpartition("/")[0]
        for target in targets - FOR_ALL:
            other = target.rpartition("/")[0]
            allowed = {folder, *MAY_IMPORT_WITHIN.get(folder, ())}
            if other.split("/")[0] == folder.split("/")[0] and other not in allowed:
                found.append(f"{module} imports {target}")
    return found


def test_subfolders_import_only_as_the_map_allows():
    assert not strays(module_imports())


def test_a_planted_import_between_subfolders_is_found():
    planted = {"passes/step/layers": {"passes/search/problem"}, "passes/overlap": {"passes/overlapping/flow"}}
    assert strays(planted) == ["passes/step/layers imports passes/search/problem"]


def test_the_map_has_exactly_the_folders():
    folders = {name_of(path).rpartition("/")[0] for path in FILES}
    subfolders = {folder for folder in folders if "/" in folder and not folder.startswith("models/")}
    assert set(MAY_IMPORT) == {folder for folder in folders if "/" not in folder}
    assert {folder for folder in MAY_IMPORT_WITHIN if "/" in folder} == subfolders
    used = module_imports()
    for folder, allowed in MAY_IMPORT_WITHIN.items():
        targets = {target for module, all_ in used.items() if module.rpartition("/")[0] == folder for target in all_}
        assert allowed <= {target.rpartition("/")[0] for target in targets}, f"{folder} does not import all it may"


def test_there_are_no_import_cycles():
    ordered = list(graphlib.TopologicalSorter(module_imports()).static_order())  # CycleError names a cycle.
    assert sorted(ordered) == sorted(module_imports())


def loaded_after(program: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running `program`."""
    report = "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", textwrap.dedent(program) + report]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def import_all(folder: str) -> str:
    """Return the program that imports every module of a folder of the package."""
    modules = [path.relative_to(ROOT) for path in FILES if path.is_relative_to(ROOT / folder)]
    names = [".".join(module.with_suffix("").parts).removesuffix(".__init__") for module in modules]
    return "\n".join(f"import shardwright.{name}" for name in names)


@pytest.mark.parametrize("folder", MAY_NOT_IMPORT)
def test_folder_loads_without_the_libraries_that_it_may_not_import(folder: str):
    assert loaded_after(import_all(folder)).isdisjoint(MAY_NOT_IMPORT[folder])


def test_the_root_loads_nothing_heavy():
    assert loaded_after("import shardwright; shardwright.__version__").isdisjoint({"torch", "xdsl", "numpy"})


def test_an_unknown_name_of_the_root_lists_its_names():
    import shardwright

    with pytest.raises(AttributeError, match=f"it offers {', '.join(shardwright.__all__)}"):
        _ = shardwright.parallelise  # pyright: ignore[reportAttributeAccessIssue]


PIPELINE = "prepare,search-strategy,program,finish"


def test_opt_tool_never_imports_torch_or_scipy():
    file = ROOT / "tests" / "filecheck" / "pipeline" / "classifier.mlir"
    program = f"""
        from shardwright.tools.opt_tool import main
        try:
            main([{str(file)!r}, "--pass-pipeline={PIPELINE}"])
        except SystemExit as end:
            assert not end.code, end.code
    """
    assert loaded_after(program).isdisjoint({"torch", "scipy"})


def test_long_files_and_functions_cause_warnings():
    """Warn about long files and functions, which might be divided; they are not errors."""
    for path in FILES:
        source = path.read_text()
        assert source.endswith("\n"), path
        if (lines := source.count("\n")) > MOST_FILE_LINES:
            warnings.warn(f"{name_of(path)}: {lines} lines: where are its seams?", stacklevel=1)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    warnings.warn(f"{name_of(path)}:{node.lineno}: {node.name} is {lines} lines", stacklevel=1)


def test_the_functions_of_the_architecture_page_are_in_their_files():
    text = (ROOT / "docs" / "architecture.md").read_text()
    walk = re.findall(
        r"^ *([\w.-]+) +([\w/]+\.py)(?: .*)?$", text.partition("\n```\n")[2].partition("\n```\n")[0], re.MULTILINE
    )
    assert len(walk) > 15
    for name, file in walk:
        name = name.rpartition(".")[2]
        assert re.search(rf'^ *(def|class) {name}\b|name = "{name}"$', (ROOT / file).read_text(), re.MULTILINE), name
