"""Replace the random ops of a captured graph by functions of a seed, which is an input, and a stream number."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import torch
import torch.fx
from torch.fx.node import Argument

from ..fused.random_draws import DRAWS, Draw, arguments_by_name, aten, draw_arguments, draws_nothing
from ..fused.table import FUSED_OPS

SEED = "seed"
"""The name of the seed input."""

_BLANK = frozenset({aten.empty.memory_format, aten.new_empty.default})


def draw_by_place(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """
    Replace random ops by functions of `random_ops`, and return the input for their seed, or None if none is drawn.

    Streams are numbered in the order of the graph, which is the order of the model's code. This must run before the
    removal of dead code, since eager PyTorch also runs dead code.
    """
    drawing = [node for node in graph.nodes if node.op == "call_function" and node.target in DRAWS]
    if not drawing:
        return None
    with graph.inserting_before(next(iter(graph.nodes))):
        seed = graph.placeholder(SEED)
    seed.meta["val"] = torch.empty((), dtype=torch.int64, device="meta")
    streams = count()
    for node in drawing:
        arguments = arguments_by_name(node.target, node.args, node.kwargs)
        stream = 0 if draws_nothing(node.target, arguments) else next(streams)
        _redirect(node, DRAWS[node.target], arguments, seed, stream)
    return seed


def _redirect(node: torch.fx.Node, draw: Draw, given: Mapping[str, Argument], seed: torch.fx.Node, stream: int) -> None:
    value = node.meta["val"]
    if draw.function == "random_dropout":
        arguments = draw_arguments(draw, given, value[0].dtype, value[0].shape)
        arguments["p"] = arguments["p"] if given["train"] is not False else 0.0
        node.args = (arguments.pop("input"), seed, arguments.pop("p"))
    else:
        arguments = draw_arguments(draw, given, value.dtype, [int(size) for size in value.shape])
        arguments["like"] = _source_of_shape(arguments["like"])
        node.args = ()
        arguments[SEED] = seed
    node.target = FUSED_OPS[draw.function].definition
    node.kwargs = {**arguments, "stream": stream}


def _source_of_shape(node: Argument) -> Argument:
    """Return the tensor that gives an uninitialized tensor its shape, or None if arguments give the shape."""
    while isinstance(node, torch.fx.Node) and node.target is aten.empty_like.default:
        node = node.args[0]
    return None if isinstance(node, torch.fx.Node) and node.target in _BLANK else node
