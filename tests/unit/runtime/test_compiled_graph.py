"""Functions compiled by Inductor, and functions that it cannot compile."""

import logging
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch._inductor import config, cpp_builder
from torch.utils import _triton

from shardwright.runtime.compiled.compute import ComputeFunction
from shardwright.runtime.compiled.graph import TracedGraph
from shardwright.runtime.compiled.load import compiled_stages
from shardwright.runtime.compiled.usable import verify_usable
from shardwright.runtime.plan import PlanError

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def in_this_process() -> Iterator[None]:
    with config.patch({"compile_threads": 1}):
        yield


def update(comm: object, given: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    total, x = given
    given.clear()
    y = aten.exp.default(x)
    total = aten.add_.Tensor(total, y)
    return total, aten.relu.default(aten.neg.default(y))


def test_a_compiled_function_writes_in_place_and_keeps_no_references():
    function, again = ComputeFunction(update), ComputeFunction(update)
    for each in (function, function, again):
        total, x = torch.ones(3, 4), torch.randn(3, 4)
        expected, given, freed = 1 + x.exp(), [total, x], weakref.ref(x)
        del x
        summed, other = each(None, given)
        assert given == []
        assert freed() is None
        assert summed.data_ptr() == total.data_ptr()
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(other, torch.zeros(3, 4))


def test_equal_functions_are_compiled_once():
    graphs = [TracedGraph.of(lambda given: update(None, given), [torch.ones(3, 4)] * 2) for _ in range(2)]
    assert graphs[0].is_worth_compiling
    assert graphs[0].key == graphs[1].key
    assert graphs[0].compiled() is graphs[1].compiled()
    assert TracedGraph.of(lambda given: update(None, given), [torch.ones(3, 5)] * 2).key != graphs[0].key


def test_numbers_are_constants():
    function = ComputeFunction(lambda _, given: (given[1].narrow(0, given[0], 1).exp().neg() + 1,))
    x = torch.randn(2, 3)
    for part in (0, 1, 0):
        torch.testing.assert_close(function(None, [part, x])[0], 1 - x[part : part + 1].exp())


def test_a_function_without_fusion_is_not_compiled():
    graph = TracedGraph.of(lambda given: (given[0].t() @ given[1], given[1].view(-1)), [torch.ones(4, 4)] * 2)
    assert not graph.is_worth_compiling


def test_a_function_that_depends_on_values_is_not_compiled(caplog: pytest.LogCaptureFixture):
    def picked(comm: object, given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (aten.nonzero.default(given[0]), given[0] + 1)

    with caplog.at_level(logging.WARNING, logger="shardwright"):
        found, _ = ComputeFunction(picked)(None, [torch.tensor([0, 3, 4])])
    assert found.tolist() == [[1], [2]]
    assert "picked is not compiled: " in caplog.text


@pytest.fixture
def no_compiler() -> Iterator[None]:
    cpp_builder.cpp_compiler_search.cache_clear()
    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        yield
    cpp_builder.cpp_compiler_search.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_error_gives_advice():
    match = r"needs a C\+\+ compiler.*install g\+\+ or clang\+\+.*CXX; leave out compile=True"
    with pytest.raises(PlanError, match=match):
        verify_usable(CPU)
    with pytest.raises(PlanError, match=match):
        compiled_stages((), "", CPU)


def test_without_triton_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_triton, "has_triton", lambda: False)
    with pytest.raises(PlanError, match=r"needs Triton for the kernels of cuda:0.*; leave out compile=True"):
        verify_usable(torch.device("cuda", 0))


def test_a_failure_of_inductor_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise RuntimeError("no lowering")

    monkeypatch.setattr("shardwright.runtime.compiled.graph.compile_fx", fails)
    with pytest.raises(PlanError, match=r"Inductor cannot compile .*: RuntimeError: no lowering; leave out"):
        ComputeFunction(update)(None, [torch.ones(7, 4), torch.ones(7, 4)])
