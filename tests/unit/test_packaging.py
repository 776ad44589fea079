"""pyproject.toml describes the actual folders of the package."""

import tomllib
from importlib.resources import files
from pathlib import Path

import shardwright

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("api", "dialects", "ir", "lowering", "models", "passes", "runtime", "tools")


def test_every_folder_with_code_is_a_package_and_is_installed():
    holding_code = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in holding_code)
    names = {".".join(("shardwright", *folder.relative_to(ROOT).parts)) for folder in holding_code}
    installed = set(PYPROJECT["tool"]["setuptools"]["packages"])
    assert names == installed - {"shardwright", "shardwright.examples.clusters"}


def test_versions_agree():
    assert shardwright.__version__ == PYPROJECT["project"]["version"]


def test_shipped_clusters_are_found():
    shipped = files("shardwright.examples.clusters")
    assert {entry.name for entry in shipped.iterdir() if entry.name.endswith(".toml")}


def test_pyright_follows_every_folder():
    links = ROOT / ".typings" / "shardwright"
    assert all((links / folder).resolve() == ROOT / folder for folder in FOLDERS)


def test_every_public_name_can_be_imported():
    assert all(hasattr(shardwright, name) for name in shardwright.__all__)
