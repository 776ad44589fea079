"""`parallelize` in a user's script, alone and under torchrun, compared with plain PyTorch."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from forked import run_python, torchrun
from split_cluster import split_cluster

import shardwright as sw
from shardwright.api.checking.reference import EagerRun, vary_batch
from shardwright.ir.cluster_file import cluster_toml
from shardwright.ir.mesh import Mesh
from shardwright.models.registry import training_step
from shardwright.runtime.plan import PlanError

SCRIPT = """
import json
import os
import sys

import torch

import shardwright as sw
from shardwright.api.checking.reference import vary_batch
from shardwright.models.registry import training_step

made = training_step("gpt2-tiny")
model = made.model
if sys.argv[2] == "module":
    torch.manual_seed(0)
    model = made.build_model()
step = sw.parallelize(
    model, made.loss, made.optimizer, made.batch, cluster=sys.argv[1], plan=sw.PlanOptions(dtype=torch.float64), seed=0
)
batches = [vary_batch(made.batch, number, torch.float64) for number in range(3)]
losses = [step(batch, lr=1e-2).item() for batch in batches]
state = step.state_dict()
name = next(iter(state))
assert torch.equal(step.gather(name), state[name])
if os.environ.get("RANK", "0") == "0":
    torch.save(state, "state.pt")
    print(json.dumps({"losses": losses, "mesh": step.plan["mesh"]}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "cluster.toml").write_text(cluster_toml(split_cluster(Mesh.of(dp=1, tp=2))))
    return folder


@pytest.mark.parametrize(
    ("launcher", "model"),
    [
        pytest.param("alone", "factory", id="factory-alone"),
        pytest.param("torchrun", "module", id="module-torchrun"),
        pytest.param("alone", "module", id="module-alone", marks=pytest.mark.thorough),
        pytest.param("torchrun", "factory", id="factory-torchrun", marks=pytest.mark.thorough),
    ],
)
def test_a_script_trains_as_on_one_device(folder: Path, launcher: str, model: str):
    command = ("train.py", "cluster.toml", model)
    done = torchrun(2, *command, folder=folder) if launcher == "torchrun" else run_python(*command, folder=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mesh"] == ({"dp": 1, "tp": 2} if launcher == "torchrun" else {"dp": 1, "tp": 1})

    made = training_step("gpt2-tiny")
    made = replace(made, optimizer=partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
    reference = EagerRun(made, torch.float64, seed=0)
    batches = [vary_batch(made.batch, number, torch.float64) for number in range(3)]
    expected = [reference.step(batch)["loss", "loss"].item() for batch in batches]
    assert found["losses"] == pytest.approx(expected, rel=1e-10)
    state = torch.load(folder / "state.pt")
    # The state dict has every key, also of tied weights, so that plain PyTorch can load it.
    model_here = reference.model
    for name, value in model_here.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-8, atol=1e-8)
    model_here.load_state_dict(state)


def test_a_cluster_of_another_size_is_refused_on_every_rank(folder: Path):
    (folder / "four.toml").write_text(cluster_toml(split_cluster(Mesh.of(gpu=4))))
    done = torchrun(2, "train.py", "four.toml", "factory", folder=folder)
    assert done.returncode == 1
    message = "cluster 'split' has 4 devices (mesh <[\"gpu\"=4]>), but the job has 2 ranks; start it with"
    assert done.stderr.count(message) == 2


FAILS = """
import sys

import torch.distributed as dist

import shardwright as sw
from shardwright.models.registry import training_step

made = training_step("mlp-tiny")
step = sw.parallelize(made.model, made.loss, made.optimizer, made.batch, cluster="cluster.toml")
for number in range(1000):
    step(made.batch)
    if dist.get_rank() == 1 and number == 1:
        raise ZeroDivisionError("of the script's own")
"""


def test_an_error_in_the_script_of_one_rank_ends_all_with_one_message(folder: Path):
    (folder / "fails.py").write_text(FAILS)
    done = torchrun(2, "fails.py", folder=folder)
    assert done.returncode == 1
    assert done.stderr.count("[rank1]: ZeroDivisionError: of the script's own") == 1
    assert "[rank0]" not in done.stderr


def test_a_missing_cluster_file_is_named():
    made = training_step("mlp-tiny")
    with pytest.raises(PlanError, match=r"no\.toml: cannot read the cluster file"):
        sw.parallelize(made.model, made.loss, made.optimizer, made.batch, cluster="no.toml")


def test_a_step_runs_in_this_process():
    made = training_step("mlp-tiny")
    step = sw.parallelize(made.model, made.loss, made.optimizer, made.batch, cluster=split_cluster(Mesh.of(gpu=2)))
    first = step(vary_batch(made.batch, 0, None))
    assert first.dim() == 0
    assert "def step(" in step.program
    assert set(step.state_dict()) == set(made.build_model().state_dict())
    with pytest.raises(KeyError, match="no parameter or buffer 'w'"):
        step.gather("w")
