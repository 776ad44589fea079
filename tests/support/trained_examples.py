"""
Train examples one after the other, for torchrun: `trained_examples.py CLUSTER STEPS NAME...`.

The first rank prints the losses of each as JSON, by the name of the example, with the seconds that it took.
"""

from __future__ import annotations

import json
import os
import sys
import time

from example_runs import load_example


def main(cluster: str, steps: str, *names: str) -> None:
    """Train; an example is a module with a function `train(steps, cluster)` that yields losses."""
    for name in names:
        began = time.monotonic()
        losses = list(load_example(name).train(int(steps), cluster))
        if os.environ["RANK"] == "0":
            print(json.dumps({"name": name, "losses": losses, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
