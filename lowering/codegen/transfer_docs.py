"""Write the transfers between the stages of a step for the runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import SSAValue

from ...dialects.compute import dtype_of, shape_of
from ...dialects.pipe import TransferOp
from ...dialects.step import sharding_of
from ...ir.unit_tasks import Task
from .errors import EmitError
from .layout import Doc, call, keyword, literal, tuple_of
from .plan import spread_text
from .stages import Stage


def transfer_docs(stages: Sequence[Stage]) -> Iterator[Doc]:
    """Return `rt.Transfer(...)` for each transfer of a step, in order."""
    func = stages[0].func

    def holders(op: TransferOp, value: SSAValue) -> Doc:
        if (stage := next((stage for stage in stages if stage.has(value)), None)) is None:
            raise EmitError(op, f"is from or to @{op.mesh.data}, which is not a stage of the function")
        sharding = sharding_of(value)
        mesh = f"{'MESH' if stage.mesh.axes == stage.mesh.spatial else 'TIMED'}{stage.suffix}"
        text = [] if sharding.is_replicated else [literal(spread_text(func, sharding))]
        return call("rt.Holders", [mesh, literal(stage.ranks), *text])

    for op in func.body.block.ops:
        if not isinstance(op, TransferOp):
            continue
        if (tasks := op.tasks_in_turn) is None:
            raise EmitError(op, "has no unit tasks yet; run plan-transfers")
        entries: dict[str, Doc] = {
            "label": literal(op.label.data),
            "shape": literal(shape_of(op.operand)),
            "dtype": literal(dtype_of(op.operand)),
            "source": holders(op, op.operand),
            "target": holders(op, op.result),
            "tasks": tuple_of(map(_task, tasks), fill=True),
        }
        yield call("rt.Transfer", map(keyword, entries, entries.values()))


def _task(task: Task) -> Doc:
    return call("rt.Task", map(literal, (task.part, task.slice, task.sender, task.receivers)))
