"""
Train with Ray Train, one worker per GPU (`pip install 'ray[train]'`).

    python ray_train.py --workers 16 --storage /shared/runs

Ray starts the workers and makes their process group, which `parallelize` uses. This script is checked for its syntax
only, because the tests of this project do not install Ray.
"""

from __future__ import annotations

import argparse
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig  # pyright: ignore[reportMissingImports]
from ray.train.torch import TorchTrainer  # pyright: ignore[reportMissingImports]


def train(config: dict[str, Any]) -> None:
    """Train on one worker; the module is in the working directory of the job."""
    from train import main

    main(config["arguments"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--storage", required=True, help="folder that all hosts share")
    options = parser.parse_args()
    TorchTrainer(
        train,
        train_loop_config={"arguments": ["--save", f"{options.storage}/checkpoints"]},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=True),
        # Ray starts all workers again when one fails; the script then resumes from its checkpoint.
        run_config=RunConfig(storage_path=options.storage, failure_config=FailureConfig(max_failures=3)),
    ).fit()
