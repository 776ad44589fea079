"""The server that forks the ranks and programs of tests with their imports already loaded."""

from __future__ import annotations

from multiprocessing import forkserver
from pathlib import Path

PASSES = sorted(path.stem for path in (Path(__file__).parents[2] / "passes").glob("[a-z]*.py"))

LOADED = [
    *(f"shardwright.passes.{name}" for name in PASSES),
    "shardwright.dialects.known_attributes",
    "shardwright.models.registry",
    "torch.distributed.run",
    "torch._inductor.fx_passes.dedupe_symint_uses",
    "torch._inductor.pattern_matcher",
    "torch._subclasses.schema_check_mode",
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
