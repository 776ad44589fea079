"""
The training that `kills.py` kills: a short run that saves after every step, and logs its progress on standard output.

    torchrun ... _killed_training.py FOLDER CLUSTER [RANK OPERATION COUNT]

It uses everything that a checkpoint must restore: optimizer states, dropout, a data loader, a learning rate schedule.
With `-` as the folder nothing is saved.
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
"""Number of steps of one run."""

_ROWS, _BATCHES = 12, 15


@dataclass(frozen=True)
class Aim:
    """
    The place where a rank stops in order to be killed: before an operation on a file of the run's folder.

    `count` operations of this kind happen first, counted from the planning of the step.
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
"""Operations of ranks on files, roughly in order, and whether only rank 0 does them. Folders are read to be flushed."""


def train(folder: str, cluster: str, aim: Aim | None = None) -> None:
    """Train to the end, on every rank of a job."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))
    data = TensorDataset(torch.randn(_ROWS * _BATCHES, 12), torch.randint(4, (_ROWS * _BATCHES,)))
    loss_of, adamw = nn.functional.cross_entropy, lambda params: torch.optim.AdamW(params, lr=1e-2)
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
                # Every other checkpoint is written while training continues.
                asynchronous = step.steps % 2 == 0
                step.save(folder, extra=schedule.state_dict(), asynchronous=asynchronous)
                if not asynchronous:
                    _say(step, _saved(step, folder))
            if step.steps == STEPS:
                break
    step.wait_saved()
    # Only a new save removes the files that a killed save left behind, so report only after a save.
    _say(step, _saved(step, folder) if saves and step.steps > began else "", "ended")


def _saved(step: Any, folder: str) -> str:
    """Return a report on the folder: the step, and the numbers of checkpoints and of other entries."""
    names = os.listdir(folder)
    checkpoints = sum(name.startswith("step-") for name in names)
    return f"saved {step.steps} {checkpoints} {len(names) - checkpoints}"


def _say(step: Any, *lines: str) -> None:
    if step.rank == 0:
        os.write(1, "".join(f"{line}\n" for line in lines).encode())


def _stand_still(aim: Aim, folder: str) -> None:
    """Install a hook that reports and waits before the operation, in whatever thread does it."""
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
"""Verbs of Python's audit events."""


def _operation(event: str, arguments: tuple[Any, ...], folder: str) -> str:
    """Return the verb and the kind of file of an event in the folder, or "" for other events."""
    path = str(arguments[0])
    # When a folder is deleted, the paths of its files are relative to that folder.
    if not path.startswith(folder) and event not in ("os.remove", "os.rmdir"):
        return ""
    verb, path = _EVENTS[event], Path(path)
    if verb == "open":
        mode, flags = arguments[1:3]
        writes = set(mode or "") & set("wax") or flags & (os.O_WRONLY | os.O_RDWR)
        verb = "write" if writes else "read"
    kinds = {".distcp": "distcp", ".unfinished": "old" if path.name.endswith(".old.unfinished") else "unfinished"}
    other = "step" if path.name.startswith("step-") else path.name
    return f"{verb} {'checkpoints' if str(path) == folder else kinds.get(path.suffix, other)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    aimed = sys.argv[3:]
    train(sys.argv[1], sys.argv[2], Aim(int(aimed[0]), aimed[1], int(aimed[2])) if aimed else None)
