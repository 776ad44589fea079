"""The work of each rank in a check: plan its share of the cases, run all of them, and compare with rank 0's run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

# Capture imports these lazily. Importing them here lets the server that forks the ranks do it once for all ranks.
import torch._functorch.aot_autograd  # noqa: F401  # pyright: ignore[reportUnusedImport]
import torch._functorch.compile_utils  # noqa: F401  # pyright: ignore[reportUnusedImport]
import torch.distributed as dist

from ...ir.mesh import Mesh
from ...lowering.capture.calling import batch_items
from ...lowering.codegen.load_program import load_text
from ...runtime.communicator import Communicator
from ...runtime.compiled.load import compiled_stages
from ...runtime.executor import Executor, gather
from ...runtime.plan import Plan, Result, Value
from ...runtime.stages import Stage, connect
from ...runtime.transfers import Lines
from .cases import SEED, CheckCase, capture_key, compile_case, imported
from .comparison import Place, Worst, assemble, largest, measure
from .reference import EagerRun, TrainingRun

PACKAGE = __name__.split(".", maxsplit=1)[0]
COMPARED = {
    "loss": "loss",
    "metric": "metric",
    "grad": "gradient",
    "param": "parameter",
    "buffer": "buffer",
    "state": "",
}
"""The kind of a compared value, by its role; a state's kind is its own name."""


def check_all(cases: Sequence[CheckCase]) -> list[str | dict[str, Worst]]:
    """Return, for each case, the largest errors, which only rank 0 knows, or the reason why it has no plan."""
    programs = zip(cases, _programs(cases), strict=True)
    loaded = [_stages(text, case) if planned else text for case, (planned, text) in programs]
    connected = _communicators([each for each in loaded if not isinstance(each, str)])
    results: list[str | dict[str, Worst]] = []
    for case, program in zip(cases, loaded, strict=True):
        if isinstance(program, str):
            results.append(program)
            continue
        try:
            results.append(compare_case(case, Executor(program, next(connected))))
        except Exception as error:
            raise RuntimeError(f"while running {case}: {error}") from error
    return results


def _programs(cases: Sequence[CheckCase]) -> list[tuple[bool, str]]:
    """Return the program of each case, or False and the error; one rank plans all cases of one capture."""
    captures = list(dict.fromkeys(map(capture_key, cases)))
    planned: dict[int, tuple[bool, str]] = {}
    for index, case in enumerate(cases):
        if captures.index(capture_key(case)) % dist.get_world_size() == dist.get_rank():
            planned[index] = program_of(case)
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, planned)
    everything = {index: program for share in shares for index, program in share.items()}
    return [everything[index] for index in range(len(cases))]


def program_of(case: CheckCase) -> tuple[bool, str]:
    """Return True and the program of a case, or False and the planning error."""
    try:
        return True, compile_case(case, imported(case)).program
    except Exception as error:
        ours = type(error).__module__.split(".", maxsplit=1)[0] == PACKAGE
        return False, str(error) if ours else f"{type(error).__name__}: {error}"


def _stages(text: str, case: CheckCase) -> tuple[Stage, ...]:
    stages = [Stage(*each) for each in load_text(text, f"{case}.py")]
    return tuple(compiled_stages(stages, text, torch.device("cpu")) if case.compile else stages)


def _communicators(programs: Sequence[Sequence[Stage]]) -> Iterator[Communicator]:
    """Yield a communicator for each program; programs of one stage on the same mesh share one, with all groups."""
    groups: dict[Mesh, dict[tuple[str, ...], None]] = {}
    for plan in (program[0].plan for program in programs if len(program) == 1):
        groups.setdefault(plan.mesh, {}).update(dict.fromkeys(plan.process_groups()))
    shared = {mesh: Communicator(mesh, axes) for mesh, axes in groups.items()}
    lines = Lines() if any(len(program) > 1 for program in programs) else None
    for program in programs:
        yield connect(program, lines=lines) if len(program) > 1 else shared[program[0].plan.mesh]


def compare_case(
    case: CheckCase, executor: Executor, reference: Callable[[], TrainingRun] | None = None
) -> dict[str, Worst]:
    """
    Train a case on the ranks of this job, and compare its values with a reference run; every rank must call this.

    Args:
        executor: the executor of the case's program.
        reference: a function that makes the reference run; by default eager PyTorch on the device of rank 0.

    Returns:
        On rank 0 the largest error of every kind of value; an empty dict on the others.
    """
    step, me, device = case.training_step(), dist.get_rank(), executor.comm.device
    executor.initialize(step.model, SEED)
    expected_by = (reference() if reference else EagerRun(step, case.dtype, SEED, device)) if me == 0 else None
    mine = _compared_values(executor.plan)
    places = _places(executor.plans)
    worst: dict[str, Worst] = {}
    rates = [group["lr"] for group in executor.plan.parameter_groups]
    for number, batch in enumerate(case.batches(), 1):
        loss = executor.step(batch_items(batch), [rate * case.factor(number) for rate in rates])
        held = {key: _local(executor, value, loss) for key, value in mine.items()}
        packed: list[Any] | None = [None] * dist.get_world_size() if me == 0 else None
        dist.gather_object(_pack(held), packed)
        if expected_by is not None and packed is not None:
            by_rank = [_unpack(each) for each in packed]
            made = expected_by.step(batch, case.factor(number))
            expected = {key: value.cpu() for key, value in made.items()}
            found = {
                key: assemble(expected[key], [(place, by_rank[rank][key]) for rank, place in where])
                for key, where in places.items()
                if key in expected
            }
            worst = largest((*worst.values(), *measure(found, expected, number).values()))
    return worst


_Key: TypeAlias = tuple[str, str]
_Packed: TypeAlias = dict[torch.dtype, tuple[torch.Tensor, list[tuple[_Key, torch.Size]]]]
"""The concatenated elements of all tensors of each dtype, with the keys and shapes of the tensors."""


def _pack(tensors: Mapping[_Key, torch.Tensor]) -> _Packed:
    """Concatenate the tensors of each dtype on the host, because pickling many small tensors is slow."""
    by_dtype: dict[torch.dtype, dict[_Key, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        by_dtype.setdefault(tensor.dtype, {})[key] = tensor
    return {
        dtype: (torch.cat([each.flatten() for each in some.values()]).cpu(), [(key, some[key].shape) for key in some])
        for dtype, some in by_dtype.items()
    }


def _unpack(packed: _Packed) -> dict[_Key, torch.Tensor]:
    return {
        key: part.view(shape)
        for elements, places in packed.values()
        for (key, shape), part in zip(places, elements.split([shape.numel() for _, shape in places]), strict=True)
    }


def _compared_values(plan: Plan) -> dict[tuple[str, str], Value | Result]:
    """Return the values to compare, by kind and name: the loss, every gradient, and all state between steps."""
    outputs = [result for result in plan.outputs if result.updates is None]
    values: dict[tuple[str, str], Value | Result] = {}
    for value in (*outputs, *plan.inputs):
        if value.role in COMPARED:
            kind = COMPARED[value.role] or (value.state if isinstance(value, Value) else "")
            values[kind, value.name or value.role] = value
    return values


def _places(plans: Sequence[Plan]) -> dict[tuple[str, str], list[tuple[int, Place]]]:
    places: dict[tuple[str, str], list[tuple[int, Place]]] = {}
    for plan in plans:
        for key, value in _compared_values(plan).items():
            places.setdefault(key, []).extend(zip(plan.ranks, _parts(value, plan.mesh), strict=True))
    return places


def _local(executor: Executor, value: Value | Result, loss: torch.Tensor) -> torch.Tensor:
    """Return a copy of this rank's part of a value; a partial value is reduced to its full result."""
    if value.role == "loss":
        return loss
    if value.role == "metric":
        return executor.metrics[value.name]
    local = executor.local(value) if isinstance(value, Value) else executor.results[value.name]
    return gather(value, local, executor.comm) if value.spread.partial else local.clone()


def _parts(value: Value | Result, mesh: Mesh) -> list[Place]:
    if value.spread.partial:
        return [tuple((0, size) for size in value.shape)] * mesh.device_count
    return [tuple((s.start, s.stop) for s in value.slices(mesh, rank)) for rank in range(mesh.device_count)]
