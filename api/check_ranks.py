"""What each rank of a check does: plan its share of the cases, run all of them, compare with rank 0's run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from xdsl.dialects.builtin import ModuleOp

from ..ir.mesh import Mesh
from ..lowering.calling import Batch, batch_items
from ..lowering.load_program import load_text
from ..runtime.communicator import Communicator
from ..runtime.executor import Executor
from ..runtime.plan import Plan
from .check import SEED, CheckCase, compile_case, imported
from .comparison import StepValues, Worst, largest, measure
from .reference import EagerRun

PACKAGE = __name__.split(".", maxsplit=1)[0]
KINDS = {"param": "parameter", "buffer": "buffer"}


class RankRun:
    """One rank's run of a program, with everything gathered."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def step(self, batch: Batch) -> StepValues:
        """Train one step; all ranks must call it."""
        executor, plan = self._executor, self._executor.plan
        values = {("loss", "loss"): executor.step(batch_items(batch))}
        for result in plan.outputs:
            if result.role == "grad":
                values["gradient", result.name] = executor.gather(result)
        for value in plan.inputs:
            if (kind := value.state or KINDS.get(value.role)) is not None:
                values[kind, value.name] = executor.gather(value)
        return values


def check_all(cases: Sequence[CheckCase]) -> list[str | dict[str, Worst]]:
    """Of each case the largest errors on any rank, or why it has no plan; every rank returns the same."""
    found = zip(cases, _programs(cases), strict=True)
    loaded = [load_text(text, f"{case}.py") if planned else text for case, (planned, text) in found]
    communicators = _communicators([each[0] for each in loaded if not isinstance(each, str)])
    results: list[str | dict[str, Worst]] = []
    for case, program in zip(cases, loaded, strict=True):
        if isinstance(program, str):
            results.append(program)
            continue
        plan, function = program
        try:
            results.append(_compared(case, Executor(plan, function, communicators[plan.mesh])))
        except Exception as error:
            raise RuntimeError(f"while running {case}: {error}") from error
    return results


def _programs(cases: Sequence[CheckCase]) -> list[tuple[bool, str]]:
    """The program of each case, or False and why there is none; cases of one capture share a rank."""
    captures = list(dict.fromkeys(map(_capture_key, cases)))
    mine: dict[int, tuple[bool, str]] = {}
    modules: dict[Hashable, ModuleOp] = {}
    for index, case in enumerate(cases):
        key = _capture_key(case)
        if captures.index(key) % dist.get_world_size() == dist.get_rank():
            mine[index] = _program(case, key, modules)
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, mine)
    everything = {index: program for share in shares for index, program in share.items()}
    return [everything[index] for index in range(len(cases))]


def _capture_key(case: CheckCase) -> Hashable:
    return case.step, case.dtype, case.optimizer


def _program(case: CheckCase, key: Hashable, modules: dict[Hashable, ModuleOp]) -> tuple[bool, str]:
    try:
        if key not in modules:
            modules[key] = imported(case)
        return True, compile_case(case, modules[key].clone()).program
    except Exception as error:
        ours = type(error).__module__.split(".", maxsplit=1)[0] == PACKAGE
        return False, str(error) if ours else f"{type(error).__name__}: {error}"


def _communicators(plans: Sequence[Plan]) -> dict[Mesh, Communicator]:
    """One communicator per mesh, with the groups of all plans on it."""
    groups: dict[Mesh, dict[tuple[str, ...], None]] = {}
    for plan in plans:
        groups.setdefault(plan.mesh, {}).update(dict.fromkeys(plan.process_groups()))
    return {mesh: Communicator(mesh, axes) for mesh, axes in groups.items()}


def _compared(case: CheckCase, executor: Executor) -> dict[str, Worst]:
    step = case.training_step()
    executor.initialize(step.model, SEED)
    reference = EagerRun(step, case.dtype, SEED) if dist.get_rank() == 0 else None
    run = RankRun(executor)
    worst: dict[str, Worst] = {}
    for number, batch in enumerate(case.batches(), 1):
        found = run.step(batch)
        expected = _from_rank_0(reference.step(batch) if reference is not None else None)
        worst = largest((*worst.values(), *measure(found, expected, number).values()))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, worst)
    return largest(each for errors in everyone for each in errors.values())


def _from_rank_0(values: StepValues | None) -> dict[tuple[str, str], torch.Tensor]:
    """What rank 0 has; every rank compares, so that copies that drift apart are seen."""
    shared: list[Any] = [values]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]
