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
    The settings of the command line.

    `stage` is the stage of this process if it is a rank; it is empty in launcher and supervisors.
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
    """Parse a command line. If it is wrong, argparse ends the process."""
    parser = argparse.ArgumentParser(prog="gpu_check", description="The check on GPUs (docs/gpu-check.md).")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder of the report (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer cases and shorter measurements")
    names = [stage.name for stage in stages]
    listed = f"comma-separated stages: {', '.join(names)}"
    known = partial(_names, names)
    parser.add_argument("--only", type=known, default=tuple(names), metavar="STAGE,...", help=f"only these {listed}")
    parser.add_argument("--skip", type=known, default=(), metavar="STAGE,...", help="stages to skip")
    parser.add_argument("--cpu", action="store_true", help="use gloo on CPUs, even if there are GPUs")
    parser.add_argument("--share-gpu", type=_positive, default=1, metavar="N", help="N ranks on each GPU (%(default)s)")
    nproc_help = "processes of this node if torchrun does not start them (one per GPU; on CPUs 4, or 2 on one core)"
    parser.add_argument("--nproc-per-node", type=_positive, metavar="N", help=nproc_help)
    parser.add_argument("--timeout", type=float, default=1800.0, help="time limit of a stage in seconds (%(default)s)")
    parser.add_argument("--stage", choices=names, default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cpu and options.share_gpu > 1:
        parser.error("--share-gpu shares GPUs, and --cpu uses none; give one of the two")
    values = vars(options)
    only, skipped = values.pop("only"), values.pop("skip")
    return Settings(stages=tuple(name for name in names if name in only and name not in skipped), **values)


def _names(known: Sequence[str], text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"no stage is called {unknown[0]!r}; there are {', '.join(known)}")
    return chosen


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
