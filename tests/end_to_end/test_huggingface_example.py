"""The example of a Hugging Face model: the script on four processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_a_llama_learns_and_its_weights_fit_an_ordinary_model():
    pytest.importorskip("transformers")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run([*launch, str(EXAMPLES / "huggingface.py")], capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)$", ran.stdout, re.MULTILINE)]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)
