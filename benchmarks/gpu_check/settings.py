"""The command line of the check."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .stages import Stage


@dataclass(frozen=True)
class Settings:
    """
    What the command line says.

    Args:
        out: the folder of reports, logs and programs.
        quick: fewer cases and shorter measurements.
        stages: the names of those that run, in order.
        cpu: whether GPUs are left alone.
        share_gpu: how many ranks each GPU has.
        nproc_per_node: how many processes this node runs where torchrun did not start them; None for as many as fit.
        timeout: seconds after which a stage is ended.
        stage: of the process of a rank: the stage that it is for; empty in the processes that supervise.
    """

    out: Path
    quick: bool
    stages: tuple[str, ...]
    cpu: bool
    share_gpu: int
    nproc_per_node: int | None
    timeout: float
    stage: str = ""


def parse(arguments: Sequence[str], stages: Sequence[Stage]) -> Settings:
    """Read a command line that chooses among stages; argparse ends the process where it is wrong."""
    parser = argparse.ArgumentParser(prog="gpu_check", description="The check on GPUs (docs/gpu-check.md).")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder of the report (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer cases and shorter measurements")
    names = [stage.name for stage in stages]
    listed = f"comma-separated stages, of {', '.join(names)}"
    known = partial(_names, names)
    parser.add_argument("--only", type=known, default=tuple(names), metavar="STAGE,...", help=f"run these: {listed}")
    parser.add_argument("--skip", type=known, default=(), metavar="STAGE,...", help="leave these out")
    parser.add_argument("--cpu", action="store_true", help="gloo on CPUs, even where there are GPUs")
    parser.add_argument("--share-gpu", type=_positive, default=1, metavar="N", help="N ranks on each GPU (%(default)s)")
    nproc_help = "processes of this node, where torchrun does not start them (one a GPU; on CPUs 4, or 2 on one core)"
    parser.add_argument("--nproc-per-node", type=_positive, metavar="N", help=nproc_help)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for a stage (%(default)s)")
    parser.add_argument("--stage", choices=names, default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.cpu and given.share_gpu > 1:
        parser.error("--share-gpu shares GPUs, and --cpu uses none; give one of the two")
    chosen = tuple(name for name in names if name in given.only and name not in given.skip)
    return Settings(
        given.out,
        given.quick,
        chosen,
        given.cpu,
        given.share_gpu,
        given.nproc_per_node,
        given.timeout,
        given.stage,
    )


def _names(known: Sequence[str], text: str) -> tuple[str, ...]:
    given = tuple(text.split(","))
    if unknown := [name for name in given if name not in known]:
        raise argparse.ArgumentTypeError(f"no stage is called {unknown[0]!r}; there are {', '.join(known)}")
    return given


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
