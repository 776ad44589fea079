"""Run emitted programs on threads and compare them with the interpreter."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from rank_threads import Meeting, run_threads
from stage_threads import Post, StageCommunicator
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from shardwright.dialects.reuse import REUSES
from shardwright.dialects.staged import Stages
from shardwright.lowering.codegen.emit_python import emit_python
from shardwright.lowering.codegen.load_program import load_text
from shardwright.lowering.fused import attention_ops, update_ops
from shardwright.lowering.fused.table import FUNCTIONS
from shardwright.lowering.interpreter.interpreter import find_function, interpret
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.passes.reuse_buffers import ReuseBuffersPass
from shardwright.runtime import layers, pieces


class PlainRuntime(SimpleNamespace):
    """The runtime with the interpreter's plain arithmetic for fused ops, so that comparisons test only the program."""

    attention = staticmethod(attention_ops.attention)
    attention_backward = staticmethod(attention_ops.attention_backward)
    increment = staticmethod(update_ops.increment)
    Sums = pieces.Sums
    part_of = staticmethod(pieces.part_of)
    by_layer = staticmethod(layers.by_layer)
    in_order = staticmethod(layers.in_order)
    split = staticmethod(layers.split)
    grouped = staticmethod(layers.grouped)
    from_each = staticmethod(layers.from_each)

    def __getattr__(self, name: str) -> Any:
        """Return the stand-in for any other function of the runtime; joined updates write their lists in place."""
        return partial(_in_place, FUNCTIONS[name]) if name.startswith("joined_") else FUNCTIONS[name]

    @staticmethod
    def adamw_(*operands: Any, **settings: Any) -> tuple[torch.Tensor, ...]:
        """Update the parameter and its two averages in place."""
        news = update_ops.adamw(*operands, **settings)
        return tuple(operands[i].copy_(new) for i, new in zip((0, 2, 3), news, strict=True))

    @staticmethod
    def sgd_(*operands: Any, **settings: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Update the parameter, and its momentum buffer if it has one, in place."""
        news = update_ops.sgd(*operands, **settings)
        updated = [operands[i].copy_(new) for i, new in zip((0, 2), news, strict=False)]
        return tuple(updated) if len(updated) > 1 else updated[0]


def _in_place(function: Any, *operands: Any, **settings: Any) -> list[torch.Tensor]:
    """Update the parameters and states of a joined update in place: all lists except the gradients."""
    gradients = 1
    lists = [each for index, each in enumerate(operands) if isinstance(each, tuple) and index != gradients]
    lists += [each for each in settings.values() if isinstance(_listed(each), list)]
    news = function(*map(_listed, operands), **{name: _listed(each) for name, each in settings.items()})
    return [old.copy_(new) for old, new in zip((old for each in lists for old in each), news, strict=True)]


def _listed(given: Any) -> Any:
    """Return a tuple of tensors, as programs write it, as the list that the plain functions take."""
    return list(given) if isinstance(given, tuple) and given and torch.is_tensor(given[0]) else given


VERSIONS = {"shardwright": "0.1.0", "torch": "2.13.0"}


def decide_reuse(module: ModuleOp) -> None:
    """Run `reuse-buffers` unless the module already has its attributes."""
    if not any(REUSES in op.attributes for op in module.walk()):
        ReuseBuffersPass().apply(Context(), module)


def emit(module: ModuleOp, name: str = "test") -> str:
    """Return the program of a lowered module."""
    decide_reuse(module)
    return emit_python(module, name=name, step_spec=None, versions=VERSIONS)


def run_program(text: str, inputs: Sequence[Sequence[torch.Tensor]]) -> list[list[tuple[torch.Tensor, ...]]]:
    """Return the results of a program for each stage and rank of its mesh, given the global inputs of each stage."""
    stages = load_text(text, "<emitted>")
    for _, step in stages:
        step.__globals__["rt"] = PlainRuntime()
    post = Post(stages[0][0].transfers)
    meetings = [Meeting(plan.mesh) for plan, _ in stages]
    places = [(stage, rank) for stage, (plan, _) in enumerate(stages) for rank in range(plan.mesh.device_count)]

    def body(place: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        stage, rank = place
        plan, step = stages[stage]
        comm = StageCommunicator(meetings[stage], post, rank, plan.ranks[rank])
        pairs = zip(plan.inputs, inputs[stage], strict=True)
        mine = [whole[value.slices(plan.mesh, rank)].clone() for value, whole in pairs]
        before = [value.clone() for value in mine]
        with torch.no_grad():
            results = step(comm, *mine)
        replaced = {result.updates for result in plan.outputs}
        for index, (found, original) in enumerate(zip(mine, before, strict=True)):
            assert index in replaced or torch.equal(found, original), f"input {index} was overwritten"
        return results

    found = run_threads(body, places, [meeting.barrier for meeting in meetings])
    return [[each for (at, _), each in zip(places, found, strict=True) if at == stage] for stage in range(len(stages))]


def check_numbers(module: ModuleOp, text: str, tolerance: float = 1e-5) -> None:
    """Compare a program, on all ranks of all stages, with the interpreter of the IR in `module`, lowered or not."""
    func = find_function(module)
    inputs = random_inputs(func)
    expected = interpret(module, inputs)
    plans = [plan for plan, _ in load_text(text, "<emitted>")]
    takes, gives = values_by_stage(func)
    by_stage = run_program(text, [[inputs[index] for index in mine] for mine in takes])
    for plan, mine, by_rank in zip(plans, gives, by_stage, strict=True):
        for index, (output, place) in enumerate(zip(plan.outputs, mine, strict=True)):
            _compare(plan, output, [results[index] for results in by_rank], expected[place], tolerance)


def values_by_stage(func: FuncOp) -> tuple[list[list[int]], list[list[int]]]:
    """Return the indices of the arguments and of the results of each stage, or of all if there are no stages."""
    stages, done = Stages(func), func.body.block.last_op
    assert done is not None
    sides = (func.body.block.args, done.operands)
    if not stages.names:
        takes, gives = ([list(range(len(values)))] for values in sides)
    else:
        numbers = range(len(stages.names))
        takes, gives = (
            [[i for i, value in enumerate(values) if stages.of_value(value) == stage] for stage in numbers]
            for values in sides
        )
    return takes, gives


def _compare(plan: Any, output: Any, by_rank: list[torch.Tensor], whole: torch.Tensor, tolerance: float) -> None:
    spread = output if output.updates is None else plan.inputs[output.updates]
    for rank in range(plan.mesh.device_count):
        group = plan.mesh.group(rank, spread.spread.partial_axes)
        local_value = torch.stack([by_rank[member] for member in group]).sum(0).to(whole.dtype)
        part = whole if output.role == "loss" else whole[spread.slices(plan.mesh, rank)]
        where = f"rank {rank} of {list(plan.ranks)}, {output}"
        torch.testing.assert_close(
            local_value, part, rtol=tolerance, atol=tolerance, msg=lambda text, where=where: f"{where}: {text}"
        )
