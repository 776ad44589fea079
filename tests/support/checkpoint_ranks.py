"""Steps that are saved, and that resume on other numbers of ranks and under other plans with the same results."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from split_cluster import split_cluster, unequal_cluster
from state_ranks import LOSS, PIPELINE, ROWS, adamw, batch, net, planned
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.mesh import parse_mesh

SAVED, LAST = 3, 6
"""The steps after which a checkpoint is written; training ends after the last."""

PLANS: dict[int, dict[str, dict[str, Any]]] = {
    2: {"zero3": {"pins": "zero3"}, "tp": {"pins": "tp"}, "dp": {"pins": "dp"}},
    4: {"stages": {"pipeline": PIPELINE, "mesh": "2x2"}, "hybrid": {"mesh": "2x2"}},
    3: {"uneven zero3": {"pins": "zero3"}},
}
"""The plans that resume, by number of ranks, in execution order."""

EXTRA = {"note": "kept", "schedule": [1, 2.5], "tensor": torch.arange(3)}


def data() -> TensorDataset:
    """Return a data set of five batches."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(5 * ROWS, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(4, (5 * ROWS,), generator=generator))


def train(step: DistributedStep, until: int, folder: Path | None = None) -> list[float]:
    """Train until step `until` and return the losses; save after the steps `SAVED` and `LAST` if there is a folder."""
    loader, losses = step.loader(data()), list[float]()
    while step.steps < until:
        for rows in loader:
            losses.append(step(rows).item())
            assert step.optimizer is not None
            for group in step.optimizer.param_groups:
                group["lr"] *= 0.9
            if folder is not None and step.steps in (SAVED, LAST):
                step.save(folder, extra=EXTRA, asynchronous=step.steps == LAST)
            if step.steps == until:
                break
        else:
            loader.batch_sampler.set_epoch(loader.batch_sampler.epoch + 1)  # type: ignore[union-attr]
    step.wait_saved()
    return losses


def saves(folder: str) -> list[float]:
    """Train, write two checkpoints and return the losses."""
    return train(planned(pins="zero3"), LAST, Path(folder))


def goes_on(folder: str) -> dict[str, Any]:
    """Resume from the first checkpoint under each plan; return the losses by plan."""
    first = Path(folder, "first")
    losses = {name: _goes_on(first, options) for name, options in PLANS[dist.get_world_size()].items()}
    return {**losses, "elastic": elastic(str(Path(folder, "elastic")))}


def _goes_on(folder: Path, options: Mapping[str, Any]) -> list[float] | str:
    step = planned(seed=1, **options)
    saved = step.resume(folder)
    if saved is None or saved.step != SAVED or step.steps != SAVED or repr(saved.extra) != repr(EXTRA):
        return f"resumed {saved}"
    return train(step, LAST)


def wide(sizes: int) -> nn.Module:
    """Return a model that the checkpoint does not fit."""
    return nn.Sequential(nn.Linear(8, sizes), nn.Linear(sizes, 4)).double()


def damages(folder: str) -> dict[str, Any]:
    """Return for each damage the step that was loaded, or the error, and the log; on two ranks."""
    return {name: _told(Path(folder), name, damage) for name, damage in DAMAGES.items()}


def _told(folder: Path, name: str, damage: Callable[[Path], DistributedStep | None]) -> tuple[Any, list[str]]:
    copied = folder.parent / name.replace(" ", "-")
    step: DistributedStep | None = None
    if dist.get_rank() == 0:
        shutil.copytree(folder, copied)
    dist.barrier()
    step = damage(copied)
    dist.barrier()
    step = step if step is not None else planned(pins="dp")
    before = {name: value.clone() for name, value in step.state_dict().items()}
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("shardwright")
    logger.addHandler(handler)
    try:
        outcome: Any = step.load(copied, optimizer=name != "another optimizer, weights alone").step
    except sw.CheckpointError as error:
        outcome = str(error).replace(str(folder.parent), "")
        unchanged = all(torch.equal(before[name], value) for name, value in step.state_dict().items())
        assert unchanged, "a checkpoint that was refused changed weights"
    finally:
        logger.removeHandler(handler)
    return outcome, messages


def _newest(folder: Path) -> Path:
    return folder / f"step-{LAST:08d}"


def _on_first(what: Callable[[Path], object]) -> Callable[[Path], DistributedStep | None]:

    def do(folder: Path) -> DistributedStep | None:
        if dist.get_rank() == 0:
            what(folder)
        return None

    return do


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _of(model: Callable[[], nn.Module], optimizer: Any) -> Callable[[Path], DistributedStep]:
    batch = torch.randn(ROWS, 8, dtype=torch.float64), torch.zeros(ROWS, dtype=torch.long)
    return lambda _: sw.parallelize(model(), LOSS, optimizer, batch, split_cluster(parse_mesh("2")))


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _save_what_cannot_be_read(folder: Path) -> DistributedStep:
    """Rank 0 adds an object that cannot be saved: every rank raises the error, and nothing is written."""
    step = planned(pins="dp")
    with pytest.raises(sw.CheckpointError, match=r"^rank 0: save\(\) was given extra=function, .*; pass plain data"):
        step.save(folder, extra=_tear if dist.get_rank() == 0 else None)
    assert not list(folder.glob(".*"))
    return step


def _save_to_a_full_disk(folder: Path) -> DistributedStep:
    """Rank 1 has a full disk: every rank raises its error, in `save` or, if asynchronous, in `wait_saved`."""
    step = planned(pins="dp")
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(FileSystemWriter, "write_data", _full)
        with pytest.raises(sw.CheckpointError, match=r"^rank 1: OSError: \[Errno 28\] No space left on device$"):
            step.save(folder)
        step.save(folder, asynchronous=True)
        with pytest.raises(sw.CheckpointError, match=r"^rank 1: OSError: \[Errno 28\] No space left on device$"):
            step.wait_saved()
    return step


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


DAMAGES: dict[str, Callable[[Path], DistributedStep | None]] = {
    "nothing": _on_first(lambda folder: None),
    "flipped": _on_first(lambda folder: _flip(_newest(folder) / "__1_0.distcp")),
    "torn": _on_first(lambda folder: _tear(_newest(folder) / "__0_0.distcp")),
    "missing": _on_first(lambda folder: (_newest(folder) / "__1_0.distcp").unlink()),
    "manifest": _on_first(lambda folder: _flip(_newest(folder) / "manifest.json")),
    "unfinished": _on_first(lambda folder: _newest(folder).rename(folder / ".step-00000006.unfinished")),
    "all": _on_first(lambda folder: [_tear(path) for path in folder.glob("*/__0_0.distcp")]),
    "empty": _on_first(shutil.rmtree),
    "an extra that cannot be read": _save_what_cannot_be_read,
    "a full disk": _save_to_a_full_disk,
    "another model": _of(lambda: wide(16), adamw),
    "another optimizer": _of(lambda: net(1), _sgd),
    "another optimizer, weights alone": _of(lambda: net(1), _sgd),
}
"""Faults of a folder, and steps that do not fit its checkpoint."""


def elastic(folder: str) -> dict[str, Any]:
    """
    Resume from the checkpoint of the previous job with a plan derived from its plan, train two steps and save.

    Returns:
        `differences` between the resumed state and the saved one, `losses`, the report's entry about replanning
        (`begun`), log messages (`told`), and whether any parameter is `split`.
    """
    messages: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger, path = logging.getLogger("shardwright"), Path(folder)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        world, is_first = dist.get_world_size(), not path.exists()
        cluster = unequal_cluster(parse_mesh(str(world)))
        # Later jobs begin with other weights and another seed, which `resume` must replace.
        model, seed = net(0 if is_first else 1), 7 if is_first else 8
        step = sw.parallelize(model, LOSS, adamw, batch(0), cluster, seed=seed, replan_from=folder)
        saved = step.resume(folder)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    differences = list(_changed(step, torch.load(path / "whole.pt"))) if saved is not None else []
    losses = [step(batch(step.steps)).item() for _ in range(2)]
    state = _whole_state(step)
    step.save(folder)
    if dist.get_rank() == 0:
        torch.save(state, path / "whole.pt")
    is_split = any(isinstance(each, DTensor | sw.LocalShard) and _is_part(each) for each in step.parameters())
    begun = step.plan.get("replan")
    return {"differences": differences, "losses": losses, "begun": begun, "told": messages, "split": is_split}


def _whole_state(step: DistributedStep) -> dict[str, Any]:
    """Return the full tensors of all that lasts from step to step."""
    states = {
        f"{name}.{kind}": value.full_tensor() if isinstance(value, DTensor) else _gathered(value)
        for name, each in step.optimizer_state_dict()["state"].items()
        for kind, value in each.items()
    }
    return {**step.state_dict(), **states, "steps": step.steps, "seed": step._executor.seed}


def _gathered(value: Any) -> Any:
    """Return the full tensor of a `LocalShard`; return any other value unchanged."""
    if not isinstance(value, sw.LocalShard):
        return value
    whole = torch.zeros(value.shape, dtype=value.local.dtype)
    for slices, local in exchanged((value.slices, value.local)):
        whole[slices] = local
    return whole


def _changed(step: DistributedStep, saved: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each value that is not bitwise equal to the saved one."""
    state = _whole_state(step)
    if state.keys() != saved.keys():
        yield f"has {sorted(state)}, saved was {sorted(saved)}"
    for name in state.keys() & saved.keys():
        if not torch.equal(torch.as_tensor(state[name]), torch.as_tensor(saved[name])):
            yield f"{name} is {state[name]}, saved was {saved[name]}"


def exchanged(mine: Any) -> list[Any]:
    """Return the objects of all ranks."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _is_part(value: DTensor | sw.LocalShard) -> bool:
    local = value.to_local() if isinstance(value, DTensor) else value.local
    return local.shape != value.shape
