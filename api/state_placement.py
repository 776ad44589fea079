"""The placement of parameters, states and buffers in a plan: the part of each value that each rank holds."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp

from ..dialects import train
from ..dialects.compute import element_bytes, shape_of
from ..dialects.step import sharding_of
from ..ir.mesh import Mesh
from ..ir.sharding import Sharding, local_slices
from ..ir.state_moves import Box, SpreadState
from ..passes.step.step_view import Input, StepView, step_functions, step_views

LASTING = (train.PARAM, train.STATE, train.BUFFER)
"""The roles of arguments that form the state of a step."""


def lasting_values(module: ModuleOp) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield the name, shape and element size in bytes of each parameter, state and buffer of a step, planned or not."""
    views = (StepView(func, Mesh(())) for func in step_functions(module))
    for given in (given for view in views for given in view.inputs):
        if given.role in LASTING:
            yield _name(given), shape_of(given.argument), element_bytes(given.argument)


def state_placement(module: ModuleOp) -> list[SpreadState]:
    """Return the parameters, optimizer states and buffers of a planned module, with the box of each rank."""
    state: list[SpreadState] = []
    first = 0
    views = step_views(module)
    for view, cluster in views:
        mesh = cluster.mesh
        known_boxes: dict[tuple[tuple[int, ...], Sharding], dict[int, Box]] = {}
        for given in view.inputs:
            if given.role not in LASTING:
                continue
            shape, sharding = shape_of(given.argument), sharding_of(given.argument)
            if (boxes := known_boxes.get((shape, sharding))) is None:
                boxes = known_boxes[shape, sharding] = {
                    first + rank: tuple((part.start, part.stop) for part in local_slices(shape, sharding, mesh, rank))
                    for rank in range(mesh.device_count)
                }
            state.append(SpreadState(_name(given), boxes, element_bytes(given.argument)))
        if view.stage is not None:
            first += mesh.device_count
    return state


def _name(given: Input) -> str:
    return f"{given.role.rpartition('.')[2]} {given.name}"
