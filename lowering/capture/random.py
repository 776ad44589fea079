"""Random ops of a captured graph become functions of a seed, which is an input, and of a stream each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import torch
import torch.fx
from torch.fx.node import Argument

from ..fused.random_draws import DRAWS, Draw, arguments_by_name, aten, draw_arguments, draws_nothing
from ..fused.table import FUSED_OPS

SEED = "seed"
"""The name of the input."""

_BLANK = frozenset({aten.empty.memory_format, aten.new_empty.default})


def draw_by_place(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """
    Replace random ops by those of `random_ops`, and return the input that is their seed; None where there is none.

    Streams are numbered in the order of the graph, which is that of the model's code: call this before dead code is
    removed, for eager PyTorch runs that too.
    """
    drawing = [node for node in graph.nodes if node.op == "call_function" and node.target in DRAWS]
    if not drawing:
        return None
    with graph.inserting_before(next(iter(graph.nodes))):
        seed = graph.placeholder(SEED)
    seed.meta["val"] = torch.empty((), dtype=torch.int64, device="meta")
    streams = count()
    for node in drawing:
        given = arguments_by_name(node.target, node.args, node.kwargs)
        stream = 0 if draws_nothing(node.target, given) else next(streams)
        _redirect(node, DRAWS[node.target], given, seed, stream)
    return seed


def _redirect(node: torch.fx.Node, draw: Draw, given: Mapping[str, Argument], seed: torch.fx.Node, stream: int) -> None:
    """Let a node call the function of its draw."""
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
    """What a tensor without numbers has its shape from; None where that is from arguments."""
    while isinstance(node, torch.fx.Node) and node.target is aten.empty_like.default:
        node = node.args[0]
    return None if isinstance(node, torch.fx.Node) and node.target in _BLANK else node
