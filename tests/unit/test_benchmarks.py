"""Every script under `benchmarks/` runs: `pytest tests/unit/test_benchmarks.py --benchmarks`, a few minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(
    path for path in FOLDER.rglob("*.py") if path.name[0] != "_" and '__name__ == "__main__"' in path.read_text()
)


@pytest.mark.benchmarks
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_runs_quickly(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script), "--quick"],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    if done.stderr.startswith("skipped: "):
        pytest.skip(done.stderr.strip())
