"""
The training that `kills.py` kills: a short run that saves after every step, and says what it does on standard output.

    torchrun ... _killed_training.py FOLDER CLUSTER [RANK OPERATION COUNT]

What a checkpoint has to bring back is all there: states of an optimizer, dropout, a loader, a schedule of the rate.
Without a folder (`-`) nothing is saved.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shardwright as sw

STEPS = 40
"""Of one run."""

_ROWS, _BATCHES = 12, 15


@dataclass(frozen=True)
class Aim:
    """
    Where a rank stands still, to be killed there: before an operation on the files of the run's folder.

    Args:
        rank: that does it.
        operation: a verb and what is opened, renamed or removed, as `_operation` has them.
        count: how many of them come first, from when the step is planned.
    """

    rank: int
    operation: str
    count: int


OPERATIONS = {
    "list checkpoints": True,
    "read manifest.json": False,
    "read distcp": False,
    "read .metadata": False,
    "read extra.pt": False,
    "mkdir unfinished": True,
    "write distcp": False,
    "write .metadata.tmp": True,
    "rename .metadata.tmp": True,
    "write extra.pt": True,
    "write manifest.json": True,
    "read unfinished": True,
    "rename unfinished": True,
    "read checkpoints": True,
    "rename step": True,
    "remove manifest.json": True,
    "remove distcp": True,
    "rmdir old": True,
}
"""What ranks do to files, in about that order, and whether rank 0 alone does it. To read a folder is to flush it."""


def train(folder: str, cluster: str, aim: Aim | None = None) -> None:
    """Train to the end, on every rank of a job."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))
    data = TensorDataset(torch.randn(_ROWS * _BATCHES, 12), torch.randint(4, (_ROWS * _BATCHES,)))
    loss_of, adamw = nn.functional.cross_entropy, lambda those: torch.optim.AdamW(those, lr=1e-2)
    step: Any = sw.parallelize(model, loss_of, adamw, data[:_ROWS], cluster, plan=sw.PlanOptions(pins="zero3"))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step.optimizer, STEPS)
    loader = step.loader(data)
    if aim is not None and aim.rank == step.rank:
        _stand_still(aim, folder)
    saves = folder != "-"
    if saves and (saved := step.resume(folder)):
        schedule.load_state_dict(saved.extra)
    began = step.steps
    _say(step, f"began {began}")
    while step.steps < STEPS:
        loader.batch_sampler.set_epoch(step.steps // _BATCHES)
        for batch in loader:
            loss = step(batch)
            schedule.step()
            _say(step, f"step {step.steps} {loss.item().hex()}")
            if saves:
                _save(step, folder, schedule.state_dict())
            if step.steps == STEPS:
                break
    step.wait_saved()
    # What was left behind by a save that was killed is there until the next one.
    _say(step, _saved(step, folder) if saves and step.steps > began else "", "ended")


def _save(step: Any, folder: str, extra: object) -> None:
    """Every other checkpoint is written while training continues."""
    asynchronous = step.steps % 2 == 0
    step.save(folder, extra=extra, asynchronous=asynchronous)
    if not asynchronous:
        _say(step, _saved(step, folder))


def _saved(step: Any, folder: str) -> str:
    """What is said once a checkpoint is written: how many there are, and how much else is in the folder."""
    names = os.listdir(folder)
    kept = sum(name.startswith("step-") for name in names)
    return f"saved {step.steps} {kept} {len(names) - kept}"


def _say(step: Any, *lines: str) -> None:
    if step.rank == 0:
        os.write(1, "".join(f"{line}\n" for line in lines).encode())


def _stand_still(aim: Aim, folder: str) -> None:
    """Say so and wait before an operation, in whatever thread does it."""
    left = aim.count + 1

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in _EVENTS or _operation(event, arguments, folder) != aim.operation:
            return
        left -= 1
        if not left:
            os.write(1, f"stands before {aim.operation}\n".encode())
            time.sleep(1e6)

    sys.addaudithook(hook)


_EVENTS = {
    "open": "open",
    "os.listdir": "list",
    "os.scandir": "list",
    "os.mkdir": "mkdir",
    "os.rename": "rename",
    "os.remove": "remove",
    "os.rmdir": "rmdir",
}
"""Events of Python's audit hooks."""


def _operation(event: str, arguments: tuple[Any, ...], folder: str) -> str:
    """What is about to be done in the folder, as a verb and a kind of file; empty for something else."""
    path = str(arguments[0])
    # What is in a folder that is deleted is named from there.
    if not path.startswith(folder) and event not in ("os.remove", "os.rmdir"):
        return ""
    verb = _EVENTS[event]
    if verb == "open":
        mode, flags = arguments[1:3]
        writes = set(mode or "") & set("wax") or flags & (os.O_WRONLY | os.O_RDWR)
        verb = "write" if writes else "read"
    return f"{verb} {_kind(Path(path), folder)}"


def _kind(path: Path, folder: str) -> str:
    if str(path) == folder:
        return "checkpoints"
    if path.suffix == ".distcp":
        return "distcp"
    if path.name.endswith(".unfinished"):
        return "old" if path.name.endswith(".old.unfinished") else "unfinished"
    return "step" if path.name.startswith("step-") else path.name


if __name__ == "__main__":
    torch.set_num_threads(1)
    aimed = sys.argv[3:]
    train(sys.argv[1], sys.argv[2], Aim(int(aimed[0]), aimed[1], int(aimed[2])) if aimed else None)
