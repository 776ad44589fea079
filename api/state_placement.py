"""Where a plan has the values that live from step to step: which part of each is on which rank."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import ModuleOp

from ..dialects import train
from ..dialects.compute import element_bytes, shape_of
from ..dialects.step import sharding_of
from ..ir.sharding import Sharding, local_slices
from ..ir.state_moves import Box, Spread
from ..passes.search.step_view import step_views

LASTING = (train.PARAM, train.STATE, train.BUFFER)
"""The roles of arguments that are the state of a step."""


def state_placement(module: ModuleOp) -> list[Spread]:
    """The parameters, states of the optimizer and buffers of a planned module, with the box of each rank."""
    found: list[Spread] = []
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
            found.append(Spread(f"{given.role.rpartition('.')[2]} {given.name}", boxes, element_bytes(given.argument)))
        if view.stage is not None:
            first += mesh.device_count
    return found


def state_bytes(spreads: list[Spread]) -> int:
    """The bytes of all values, each counted once."""
    return sum(_whole(spread) * spread.element for spread in spreads)


def _whole(spread: Spread) -> int:
    return math.prod(max(box[dim][1] for box in spread.boxes.values()) for dim in range(_rank(spread)))


def _rank(spread: Spread) -> int:
    return len(next(iter(spread.boxes.values())))
