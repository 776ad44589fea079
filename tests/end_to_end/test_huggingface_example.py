"""The example of a Hugging Face model: the script on four processes."""

from __future__ import annotations

import re

import pytest
from example_runs import launch_example


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_a_llama_learns_and_its_weights_fit_an_ordinary_model():
    pytest.importorskip("transformers")
    printed = launch_example("huggingface")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)
