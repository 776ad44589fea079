"""Values kept for backward and recomputed values: the minimum cut compared with all choices, and excluded ops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_files import context, parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects.compute import ComputeOp
from shardwright.dialects.step import BACKWARD, RECOMPUTED
from shardwright.ir.cluster_file import find_cluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.recompute import RecomputePass
from shardwright.passes.recomputing.activations import Activations
from shardwright.passes.recomputing.kept_values import ForwardOp, ForwardValue, choose
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import StepView, cluster_of_module, step_functions


@dataclass(frozen=True)
class Graph:
    """Ops; each has one result, with the number of the op."""

    ops: list[ForwardOp]
    values: list[ForwardValue]

    def choices(self) -> list[tuple[float, float]]:
        """Return the seconds and bytes of every set of kept values that suffices for backward."""
        numbers = range(len(self.ops))
        found: list[tuple[float, float]] = []
        for kept in map(set, chain.from_iterable(combinations(numbers, n) for n in range(len(self.ops) + 1))):
            again, wanted = set[int](), [n for n in numbers if self.values[n].is_needed and n not in kept]
            while wanted:
                number = wanted.pop()
                if number not in again:
                    again.add(number)
                    wanted += [each for each in self.ops[number].operands if each not in kept]
            seconds = sum(self.ops[number].seconds for number in again)
            size = sum(self.values[number].bytes for number in kept)
            if seconds < inf and size < inf:
                found.append((seconds, size))
        return found


SIZES = (1.0, 2.0, 4.0, 8.0)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 7))
    ops, values = list[ForwardOp](), list[ForwardValue]()
    for number in range(count):
        operands = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set[int]()
        is_fixed = draw(st.booleans()) and draw(st.booleans())
        seconds = inf if is_fixed else draw(st.sampled_from([0.0, 1.0, 2.0, 5.0]))
        # A view takes no time and is never kept; a value must be allowed to be kept or to be recomputed.
        size = inf if seconds == 0.0 else draw(st.sampled_from(SIZES if is_fixed else (*SIZES, inf)))
        ops.append(ForwardOp(seconds, tuple(sorted(operands)), (number,)))
        values.append(ForwardValue(size, draw(st.booleans())))
    return Graph(ops, values)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.sampled_from([1.0, 0.7, 0.4, 0.0]))
def test_no_choice_is_better_in_both_seconds_and_bytes(graph: Graph, part: float):
    found = choose(graph.ops, graph.values, part)
    known = graph.choices()
    first = choose(graph.ops, graph.values, 1.0)
    assert any(abs(found.seconds - s) < 1e-9 and abs(found.bytes - b) < 1e-9 for s, b in known)
    # If everything may be kept, only the necessary ops are recomputed.
    assert first.seconds == pytest.approx(min(s for s, _ in known))
    assert found == first or not any(s <= found.seconds + 1e-9 and b < found.bytes - 1e-9 for s, b in known)
    assert found.bytes <= max(part * first.bytes, min(b for _, b in known)) + 1e-9


def deep() -> ModuleOp:
    """Return a copy of a step of six equal layers on four devices."""
    return _deep().clone()


@cache
def _deep() -> ModuleOp:
    config = GPT2Config(layers=6, width=32, heads=4, vocabulary=101, positions=24)
    module = import_training_step(gpt2_step(config, batch=8, length=16))
    add_cluster(module, find_cluster("local-4"))
    run_pipeline(Context(), module, "prepare")
    return module


def view_of(module: ModuleOp) -> StepView:
    (func,) = step_functions(module)
    return StepView(func, cluster_of_module(module).mesh)


def test_keeping_less_recomputes_more():
    module = deep()
    found = Activations(view_of(module), cluster_of_module(module))
    chosen = [choose(found.ops, found.values, part) for part in (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)]
    assert [c.bytes for c in chosen] == sorted((c.bytes for c in chosen), reverse=True)
    assert [c.seconds for c in chosen] == sorted(c.seconds for c in chosen)
    assert len({c.bytes for c in chosen}) >= 5
    for part, choice in zip((0.8, 0.6, 0.4), chosen[1:], strict=False):
        assert choice.bytes <= part * chosen[0].bytes


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_values_between_layers_are_kept_and_equal_layers_decide_equally(keep: float):
    module = deep()
    segments = Activations(view_of(module), cluster_of_module(module)).segment_of
    RecomputePass(keep).apply(Context(), module)
    module.verify()
    view = view_of(module)
    layers = find_layers(view)
    again = [op for op in view.ops if RECOMPUTED in op.attributes]
    assert again
    assert all(BACKWARD in op.attributes for op in again)
    names: dict[int, list[str]] = {}
    for op in again:
        assert view.func.body.block is op.parent
        for value in op.args:
            made = value.owner
            if isinstance(made, ComputeOp) and RECOMPUTED in made.attributes:
                assert segments[layers.of[made]] == segments[layers.of[op]], "a segment is computed again by itself"
        names.setdefault(layers.of[op], []).append(op.name)
    inner = [names[layers.names.index(f"h.{n}")] for n in range(1, 5)]
    assert all(each == inner[0] for each in inner)


def test_nothing_is_recomputed_without_a_limit_or_marks():
    module = deep()
    before = str(module)
    RecomputePass().apply(Context(), module)
    assert str(module) == before


def test_ops_that_would_draw_other_numbers_are_not_recomputed():
    text = """
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4x4xf32> {train.param = "w"},
        %seed: tensor<i64> {train.seed}) -> (tensor<f32> {train.loss}, tensor<8x4xf32>) {
      %a = aten.mm %x, %w {train.checkpoint = 1 : i64} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %b, %kept = aten.random_dropout %a, %seed
        {p = 0.5 : f64, stream = 0 : i64, independent = true, train.checkpoint = 1 : i64}
        : (tensor<8x4xf32>, tensor<i64>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
      %c = aten.tanh %b {train.checkpoint = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %loss = aten.sum %c : (tensor<8x4xf32>) -> tensor<f32>
      %g = aten.mul.Tensor %c, %b {train.backward} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %loss, %g : tensor<f32>, tensor<8x4xf32>
    }
    """
    module = parse(text, context())
    RecomputePass().apply(Context(), module)
    assert not any(RECOMPUTED in op.attributes and "random" in op.name for op in module.walk())
