"""The sdist and the wheel have everything, and the wheel works in an environment without the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "results", "*.egg-info", "__pycache__")

IN_SDIST = (
    *("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "requirements-dev.lock"),
    *("docs/conf.py", "docs/index.md", "docs/pipeline.svg", "tests/pytest.ini", "tests/conftest.py"),
    *("examples/demo.py", "examples/clusters/local-4.toml", "benchmarks/_report.py", "py.typed"),
)
"""Some files of every part of the sdist."""

DATA = [Path("py.typed"), *(path.relative_to(ROOT) for path in ROOT.glob("examples/clusters/*.toml"))]
DATA += [path.relative_to(ROOT) for path in ROOT.glob("ir/ops/*.txt")]
"""The data of the package."""


def run(*command: object, cwd: Path) -> str:
    """Run a command and return its standard output; its standard error is the message if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both archives from a copy of the checkout, the wheel from the sdist."""
    pytest.importorskip("build", reason="needs shardwright[dev]")
    copy = tmp_path_factory.mktemp("release") / "checkout"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=copy)
    return copy / "dist"


def test_the_sdist_has_docs_tests_and_examples(dist: Path):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {*IN_SDIST, *map(str, DATA)} - names
    assert missing == set()
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_wheel_has_the_package_alone(dist: Path):
    (path,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    assert {f"shardwright/{name}" for name in DATA} <= names
    folders = {name.split("/")[1] for name in names if name.startswith("shardwright/") and name.count("/") > 1}
    assert folders == {"api", "dialects", "examples", "ir", "lowering", "models", "passes", "runtime", "tools"}
    assert {name for name in names if name.startswith("shardwright/examples/")} == {
        "shardwright/examples/clusters/__init__.py",
        *(f"shardwright/{name}" for name in DATA if name.parts[0] == "examples"),
    }


def libraries(version: str) -> tuple[str, str]:
    """Return an interpreter of this version and the folder of its libraries, or skip if it has no torch and xDSL."""
    is_ours = version == f"{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = sys.executable if is_ours else shutil.which(f"python{version}") or ""
    code = "import sysconfig, torch, xdsl, ortools; print(sysconfig.get_paths()['purelib'])"
    try:
        done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True)
    except OSError:
        pytest.skip(f"there is no python{version}")
    if done.returncode:
        pytest.skip(f"python{version} lacks the dependencies")
    return interpreter, done.stdout.strip()


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_wheel_plans_and_trains_in_a_new_environment(version: str, dist: Path, tmp_path: Path):
    interpreter, installed = libraries(version)
    (wheel,) = dist.glob("*.whl")
    run(interpreter, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    install = (sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--no-index", "--no-deps")
    run(*install, wheel, cwd=tmp_path)
    # The dependencies, which are too large to install once more. The editable install among them stays invisible:
    # Python runs the .pth files of site folders only.
    (own,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(installed)

    where = run(binaries / "python", "-c", "import shardwright; print(shardwright.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(own)
    number = wheel.name.split("-")[1]
    assert f"shardwright {number}" in run(binaries / "opt-tool", "--version", cwd=tmp_path)
    trained = ("run", "mlp-tiny", "--cluster", "local-4", "--mesh", "4", "--steps", "2")
    assert "loss" in run(binaries / "shardwright", *trained, cwd=tmp_path)
