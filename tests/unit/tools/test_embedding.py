"""The passes in other programs: stock `xdsl-opt` and an embedded pipeline."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STEP = """
func.func @step(%x: tensor<64x64xf32> {train.batch = "0"}) -> tensor<f32> {
  %m = aten.mean %x : (tensor<64x64xf32>) -> tensor<f32>
  func.return %m : tensor<f32>
}
"""


def run(*command: str, text: str | None = None) -> str:
    """Run a command, which must succeed, and return its output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_xdsl_opt_finds_our_passes_by_entry_point():
    tool = Path(sys.executable).with_name("xdsl-opt")
    printed = run(str(tool), "-p", 'decompose-mean,add-cluster{file="local-4"},search-strategy', text=STEP)
    assert "aten.sum" in printed
    assert "aten.mean" not in printed
    assert "spmd.signature" in printed


def test_xdsl_opt_refuses_attributes_of_another_kind():
    tool = Path(sys.executable).with_name("xdsl-opt")
    wrong = STEP.replace('train.batch = "0"', "train.batch = 0 : i64")
    done = subprocess.run([str(tool)], input=wrong, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "train.batch of argument 0 is 0 : i64, expected text" in done.stderr


def test_the_embedding_example_shards_its_step():
    printed = run(sys.executable, str(ROOT / "examples" / "embed_passes.py"))
    assert 'spmd.cluster @"local-4"' in printed
    assert "spmd.signature" in printed


def test_the_embedding_example_is_short():
    lines = (ROOT / "examples" / "embed_passes.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= 45
