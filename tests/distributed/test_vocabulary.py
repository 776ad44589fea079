"""
Models with a vocabulary split over devices train as one device does: embedding, head, cross-entropy and gradients.

The size of the vocabulary is odd, embedding and head are tied, and no tensor of the vocabulary's size is gathered.
Cases run on gloo, with one launch per number of ranks, or in the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import vocabulary_steps
from launches import names_of, results_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult, compile_case, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.ir.mesh import Mesh

FILE = Path(__file__).parents[1] / "support" / "vocabulary_pins.toml"
SEARCH = f'search-strategy{{algorithm=fixed pins="{FILE}"}}'
TIED = {"gpt2": "wte.weight", "bert": "embeddings.tokens.weight"}
MESHES = {"2": Mesh.of(gpu=2), "4": Mesh.of(gpu=4), "2x2": Mesh.of(node=2, gpu=2)}

SPLIT = ("embedding_part", "nll_loss_forward_part", "embedding_dense_backward_part", "cross_entropy_backward")
"""The functions that programs call on a part of the vocabulary."""

PIPELINES = {
    "accumulate": f"prepare,{SEARCH},program{{parts=2}},finish",
    "duplex": f"prepare,{SEARCH},program{{mode=duplex parts=2}},finish",
    "stages": f'prepare,partition-stages{{stages=2 ranks="2,2"}},{SEARCH},'
    "program{mode=pipeline parts=2 schedule=1f1b},finish",
}


def pinned(model: str, mesh: str, dtype: torch.dtype, ratios: str = "even") -> CheckCase:
    """Return a case that splits the vocabulary over `gpu`, and the batch over `node` if the mesh has that axis."""
    pins = f'[[pin]]\nvalue = "{TIED[model]}"\nsharding = \'[{{"gpu"}}, {{}}]\'\n'
    if mesh == "2x2":
        pins += '[[pin]]\npreset = "dp"\naxes = ["node"]\n'
    step, cluster = getattr(vocabulary_steps, model), split_cluster(MESHES[mesh])
    return CheckCase(step, MESHES[mesh], pins, dtype, "sgd", steps=3, cluster=cluster, ratios=ratios)


def over_time(passes: str, mesh: str) -> CheckCase:
    """Return a case of GPT-2 with a pipeline of `PIPELINES`."""
    step, cluster, pipeline = vocabulary_steps.gpt2, split_cluster(MESHES[mesh]), PIPELINES[passes]
    return CheckCase(step, MESHES[mesh], None, torch.float64, "sgd", steps=3, cluster=cluster, pipeline=pipeline)


CASES = {
    "gpt2 on 2, float32": pinned("gpt2", "2", torch.float32),
    "bert on 2, float64": pinned("bert", "2", torch.float64),
    "gpt2 on 2x2, float64": pinned("gpt2", "2x2", torch.float64),
    "bert on 4, float32": pinned("bert", "4", torch.float32),
    "gpt2 on 4, uneven": pinned("gpt2", "4", torch.float64, ratios="0.4,0.3,0.2,0.1"),
    "bert on 4, one without words": pinned("bert", "4", torch.float64, ratios="0.5,0.0,0.3,0.2"),
    "gpt2 accumulated": over_time("accumulate", "2"),
    "gpt2 in duplex": over_time("duplex", "2"),
    "gpt2 in two stages": over_time("stages", "4"),
}


THOROUGH = {"bert on 2, float64", "bert on 4, float32", "gpt2 on 4, uneven"}
"""Cases that run only with `--thorough`: the others have each model, mesh, precision and form of time."""


def is_quick(name: str) -> bool:
    """Return whether a case runs without `--thorough`."""
    return name not in THOROUGH


results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, is_quick))
def test_a_split_vocabulary_trains_as_a_whole_one_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)


INTERPRETED = ("gpt2 on 2x2, float64", "bert on 4, one without words", "gpt2 in two stages")


@pytest.mark.parametrize("name", names_of(INTERPRETED, lambda name: "stages" in name))
def test_the_interpreter_agrees(name: str):
    result = check_interpreted(CASES[name])
    assert result.passed, str(result)


@pytest.mark.parametrize("name", names_of(CASES, is_quick))
def test_programs_split_the_vocabulary(name: str):
    """Programs split the vocabulary; otherwise the cases above would not test a split vocabulary."""
    program = compile_case(CASES[name], imported(CASES[name])).program
    for function in SPLIT:
        assert re.search(rf"rt\.{function}\([^)]*part=", program), function
    assert "_log_softmax.default" not in program
