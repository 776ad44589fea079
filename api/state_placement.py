"""The placement of parameters, states and buffers in a plan: which part of each is on which rank."""

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
"""The roles of arguments that are the state of a step."""


def lasting_values(module: ModuleOp) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """The name, shape and bytes of an element of every parameter, state and buffer of a step, planned or not."""
    views = (StepView(func, Mesh(())) for func in step_functions(module))
    for given in (given for view in views for given in view.inputs):
        if given.role in LASTING:
            yield _name(given), shape_of(given.argument), element_bytes(given.argument)


def state_placement(module: ModuleOp) -> list[SpreadState]:
    """The parameters, states of the optimizer and buffers of a planned module, with the box of each rank."""
    found: list[SpreadState] = []
    first = 0
    views = step_views(module)
    for view, cluster in views:
        mesh = cluster.mesh
        known: dict[tuple[tuple[int, ...], Sharding], dict[int, Box]] = {}
        for given in view.inputs:
            if given.role not in LASTING:
                continue
            shape, sharding = shape_of(given.argument), sharding_of(given.argument)
            if (boxes := known.get((shape, sharding))) is None:
                boxes = known[shape, sharding] = {
                    first + rank: tuple((part.start, part.stop) for part in local_slices(shape, sharding, mesh, rank))
                    for rank in range(mesh.device_count)
                }
            found.append(SpreadState(_name(given), boxes, element_bytes(given.argument)))
        if view.stage is not None:
            first += mesh.device_count
    return found


def _name(given: Input) -> str:
    return f"{given.role.rpartition('.')[2]} {given.name}"
