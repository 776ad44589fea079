"""Steps to plan: small ones, and one of many equal layers."""

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.ir.cluster_file import find_cluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline


def prepared(module: ModuleOp, cluster: str) -> ModuleOp:
    """A step with a cluster, as `search-plan` gets it."""
    add_cluster(module, find_cluster(cluster))
    run_pipeline(Context(), module, "prepare")
    return module


@pytest.fixture(scope="module")
def tiny() -> ModuleOp:
    return prepared(import_training_step(training_step("gpt2-tiny")), "local-4")


@pytest.fixture(scope="module")
def three_layers() -> ModuleOp:
    """A step of few ops for which a search still tries micro-batches, duplexes and pipelines."""
    return prepared(import_training_step(mlp_step((16, 64, 64, 8), batch=64)), "local-4")


@pytest.fixture(scope="module")
def deep() -> ModuleOp:
    config = GPT2Config(layers=18, width=32, heads=4, vocabulary=101, positions=24)
    return prepared(import_training_step(gpt2_step(config, batch=8, length=16)), "rtx4090-4x4")


@pytest.fixture(scope="module")
def uneven() -> ModuleOp:
    return prepared(import_training_step(training_step("mlp-tiny")), "uneven-4")
