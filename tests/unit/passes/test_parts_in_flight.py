"""Stages hold only the parts in flight of the schedule, in the memory count and in the emitted programs."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase, compile_case, imported
from shardwright.dialects.pipe import FragmentOp
from shardwright.ir.mesh import Mesh
from shardwright.passes.analysis.memory import memory_use
from shardwright.passes.analysis.memory_events import ValueInPart
from shardwright.passes.step.step_view import step_functions, step_views

STAGES, PARTS = 3, 6
HELD = {
    "gpipe": [PARTS] * STAGES,
    "1f1b": [STAGES - stage for stage in range(STAGES)],
    "eager-1f1b": [2 * (STAGES - stage) - (stage == 0) for stage in range(STAGES)],
    "zero-bubble": [STAGES] * STAGES,
}


@cache
def compiled(schedule: str) -> tuple[ModuleOp, str]:
    """Return GPT-2 in three stages and its program; the last stage has a layer and the head."""
    mesh = Mesh.of(gpu=STAGES)
    program = f"program{{mode=pipeline parts={PARTS} schedule={schedule}}}"
    passes = f'prepare,partition-stages{{stages={STAGES} begins="0,3,4"}},search-strategy,{program},finish'
    case = CheckCase("gpt2-tiny", mesh, pipeline=passes)
    module = imported(case)
    return module, compile_case(case, module).program


def most_held(module: ModuleOp, stage: int) -> int:
    """Return the largest number of parts whose copies of one activation a stage holds at once."""
    (func,) = step_functions(module)
    mesh = next(view.mesh for view, _ in step_views(module) if view.stage == stage)
    use = memory_use(func, mesh, stage)
    fragments = {op.label.data: op for op in func.body.block.ops if isinstance(op, FragmentOp)}
    forward = fragments.pop(f"forward{stage}")
    used = {value for op in fragments.values() for value in op.captured}
    # A result that is only summed starts the sum in the memory of its first part.
    yielded = zip(forward.terminator.args, forward.outs, strict=True)
    made = {result for op in forward.body.block.ops for result in op.results}
    made -= {value for value, out in yielded if out not in used}
    by_value: dict[object, list[tuple[int, int]]] = {}
    for buffer in use.buffers:
        if isinstance(buffer.value, ValueInPart) and buffer.value.value in made:
            by_value.setdefault(buffer.value.value, []).append((buffer.first, buffer.last))
    return max(
        sum(first <= begin <= last for first, last in spans) for spans in by_value.values() for begin, _ in spans
    )


def most_alive(program: str, stage: int) -> int:
    """Return the largest number of forward runs whose variables are alive at once in the program of a stage."""
    (step,) = (
        node for node in ast.parse(program).body if isinstance(node, ast.FunctionDef) and node.name == f"step{stage}"
    )
    part_of: dict[str, str] = {}
    most = 0
    for statement in step.body:
        called = re.match(rf"forward{stage}\(comm, (\d+)", _value(statement))
        if isinstance(statement, ast.Assign) and called is not None:
            part_of |= dict.fromkeys(_names(statement.targets[0]), called[1])
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                for name in _names(target):
                    part_of.pop(name, None)
        most = max(most, len(set(part_of.values())))
    return most


def _value(statement: ast.stmt) -> str:
    return ast.unparse(statement.value) if isinstance(statement, ast.Assign) else ""


def _names(target: ast.expr) -> Iterator[str]:
    yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and node.id not in ("_", "parts"))


@pytest.mark.parametrize("schedule", HELD)
def test_memory_counts_the_parts_that_are_in_flight(schedule: str):
    module, _ = compiled(schedule)
    assert [most_held(module, stage) for stage in range(STAGES)] == HELD[schedule]


@pytest.mark.parametrize("schedule", HELD)
def test_programs_free_parts_that_are_no_longer_in_flight(schedule: str):
    _, program = compiled(schedule)
    assert [most_alive(program, stage) for stage in range(STAGES)] == HELD[schedule]
