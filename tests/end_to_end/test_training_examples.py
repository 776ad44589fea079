"""The examples of common recipes train on two processes as on one device in plain PyTorch; one launch trains all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from example_runs import EXAMPLES, load_example, write_cluster
from forked import torchrun

# Importing it takes seconds in every worker that collects this file.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")

STEPS = 3
SCRIPT = Path(__file__).parents[1] / "support" / "trained_examples.py"
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"

TOLERANCES: Mapping[str, float] = {
    "nanogpt_many": 1e-5,
    "lora": 1e-5,
    # In bfloat16, sums in another order differ by a thousandth.
    "resnet_bf16": 2e-3,
    "gan": 1e-5,
    "ema": 1e-5,
    "ppo": 1e-5,
    "lengths": 1e-5,
}
"""Example -> allowed relative error of its losses, in relation to the largest of them."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """Return the losses of all examples on two processes, and facts about their programs."""
    cluster = write_cluster(2, tmp_path_factory.mktemp("examples"))
    done = torchrun(2, str(SCRIPT), cluster, str(STEPS), *TOLERANCES)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(*(f"{row['name']}: {row['seconds']:.1f} s" for row in rows), sep="\n")
    return {row["name"]: row for row in rows}


def alone(name: str) -> list[float]:
    """Train an example in plain PyTorch and return its losses."""
    if name == "nanogpt_many":
        return list(load_example("nanogpt_one").train(STEPS))
    return list(load_example(name).train_single(STEPS))


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TOLERANCES)
def test_an_example_trains_as_on_one_device(name: str, trained: Mapping[str, Mapping[str, Any]]):
    found, expected = trained[name], alone(name)
    # The example of averaged weights also yields their loss.
    assert len(expected) == STEPS + (name == "ema")
    assert found["losses"] == pytest.approx(expected, rel=0.0, abs=TOLERANCES[name] * max(map(abs, expected)))
    # In bfloat16 losses are too close to losses in float32 to tell them from one another.
    assert found["bfloat16"] == (name == "resnet_bf16")
    assert found["collectives"] > 0


def test_the_script_for_many_devices_differs_in_a_few_lines():
    """The page on recipes shows the difference between the scripts for one device and for many."""
    one, many = ((EXAMPLES / f"nanogpt_{name}.py").read_text().splitlines() for name in ("one", "many"))
    lines = list(unified_diff(one, many, lineterm="", n=0))[2:]
    changed = [line for line in lines if line[0] in "+-" and line[1:].strip()]
    assert sum(line[0] == "+" for line in changed) <= 16, changed
    # The page leaves out the docstring, the imports and the options.
    (shown,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    inside = [line for line in shown.splitlines() if line[0] in "+-"]
    first = changed.index(inside[0])
    assert inside == changed[first : first + len(inside)]
    assert {"+    step = sw.parallelize(", "-        loss.backward()"} <= {line.partition("GPT")[0] for line in inside}


@pytest.mark.parametrize("name", [*TOLERANCES, "watching"])
def test_the_page_on_recipes_names_every_example(name: str):
    assert f"(../examples/{name}.py)" in PAGE.read_text()
