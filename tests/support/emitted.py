"""Emitted programs run on threads, beside the interpreter."""

from types import SimpleNamespace
from typing import Any

import torch
from rank_threads import ThreadCommunicator, run_ranks
from xdsl.dialects.builtin import ModuleOp

from shardwright.lowering import attention_ops, update_ops
from shardwright.lowering.emit_python import emit_python
from shardwright.lowering.interpreter import find_function, interpret
from shardwright.lowering.load_program import load_text
from shardwright.lowering.random_inputs import random_inputs
from shardwright.runtime import parts


class PlainRuntime(SimpleNamespace):
    """The runtime's fused ops in plain arithmetic, the interpreter's: what is left to compare is the program."""

    attention = staticmethod(attention_ops.attention)
    attention_backward = staticmethod(attention_ops.attention_backward)
    increment = staticmethod(update_ops.increment)
    accumulate = staticmethod(parts.accumulate)
    part_of = staticmethod(parts.part_of)

    @staticmethod
    def adamw_(*operands: Any, **settings: Any) -> tuple[torch.Tensor, ...]:
        """The parameter and its two averages, updated in place."""
        news = update_ops.adamw(*operands, **settings)
        return tuple(operands[i].copy_(new) for i, new in zip((0, 2, 3), news, strict=True))

    @staticmethod
    def sgd_(*operands: Any, **settings: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The parameter, and its momentum buffer if there is one, updated in place."""
        news = update_ops.sgd(*operands, **settings)
        updated = [operands[i].copy_(new) for i, new in zip((0, 2), news, strict=False)]
        return tuple(updated) if len(updated) > 1 else updated[0]


VERSIONS = {"shardwright": "0.1.0", "torch": "2.13.0"}


def emit(module: ModuleOp, name: str = "test") -> str:
    """The program of a lowered module."""
    return emit_python(module, name=name, step_spec=None, versions=VERSIONS)


def run_program(text: str, inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """The results of a program on each rank of its mesh, from global inputs."""
    [(plan, step)] = load_text(text, "<emitted>")
    step.__globals__["rt"] = PlainRuntime()
    replaced = {result.updates for result in plan.outputs}

    def body(comm: ThreadCommunicator) -> tuple[torch.Tensor, ...]:
        mine = [
            whole[value.slices(plan.mesh, comm.rank)].clone() for value, whole in zip(plan.inputs, inputs, strict=True)
        ]
        before = [value.clone() for value in mine]
        with torch.no_grad():
            results = step(comm, *mine)
        for index, (found, original) in enumerate(zip(mine, before, strict=True)):
            assert index in replaced or torch.equal(found, original), f"input {index} was overwritten"
        return results

    return run_ranks(plan.mesh, body)


def check_numbers(module: ModuleOp, text: str, tolerance: float = 1e-5) -> None:
    """Compare a program, on all ranks, with the interpreter of the IR in `module`, lowered or not."""
    [(plan, _)] = load_text(text, "<emitted>")
    inputs = random_inputs(find_function(module))
    expected = interpret(module, inputs)
    by_rank = run_program(text, inputs)
    for index, (output, whole) in enumerate(zip(plan.outputs, expected, strict=True)):
        spread = output if output.updates is None else plan.inputs[output.updates]
        for rank in range(plan.mesh.device_count):
            group = plan.mesh.group(rank, spread.spread.partial_axes)
            found = torch.stack([by_rank[member][index] for member in group]).sum(0).to(whole.dtype)
            part = whole if output.role == "loss" else whole[spread.slices(plan.mesh, rank)]
            where = f"rank {rank}, {output}"
            torch.testing.assert_close(
                found, part, rtol=tolerance, atol=tolerance, msg=lambda text, where=where: f"{where}: {text}"
            )
