"""
Train examples one after the other, for torchrun: `trained_examples.py CLUSTER STEPS NAME...`.

The first rank prints the losses of each as JSON, with the seconds that it took, and with facts about its program:
whether it computes in bfloat16, and the number of its collectives.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

from example_runs import load_example

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep

COLLECTIVE = re.compile(r"\bcomm\.(?:start|all_\w+|reduce_scatter|broadcast)\(")
"""A call of a program that begins a collective."""


def main(cluster: str, steps: str, *names: str) -> None:
    """Train; an example is a module with a function `train(steps, cluster)` that yields losses."""
    programs: list[str] = []

    def parallelize(*arguments: Any, **options: Any) -> DistributedStep:
        step = planned(*arguments, **options)
        programs.append(step.program)
        return step

    planned, sw.parallelize = sw.parallelize, parallelize
    for name in names:
        began = time.monotonic()
        losses = list(load_example(name).train(int(steps), cluster))
        found = {"name": name, "losses": losses, "seconds": time.monotonic() - began}
        found |= {"bfloat16": "bfloat16" in programs[-1], "collectives": len(COLLECTIVE.findall(programs[-1]))}
        if os.environ["RANK"] == "0":
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
