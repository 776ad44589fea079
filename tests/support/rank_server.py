"""The server that forks the ranks and programs of tests with their imports already loaded."""

from __future__ import annotations

from multiprocessing import forkserver

LOADED = [
    "shardwright.api.checking.ranks",
    "shardwright.api.parallelize",
    "shardwright.runtime.checkpoint_tensors",
    "shardwright.runtime.spawn",
    "shardwright.tools.cli_check",
    "shardwright.tools.cli_plan",
    "shardwright.tools.cli_run",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "frozen",
]
"""Modules to load; missing ones are skipped."""


def start_server() -> None:
    """Start the server unless it runs."""
    forkserver.set_forkserver_preload(LOADED)
    forkserver.ensure_running()
