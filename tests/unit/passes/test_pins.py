"""Pins in the IR equal the given pins, survive the text form, and are obeyed by later searches."""

from functools import cache
from pathlib import Path

import pytest
from ir_files import context
from launches import covering
from split_cluster import split_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from shardwright.api.compile import PlanOptions, import_training_step
from shardwright.dialects.pins import PIN, PINS
from shardwright.dialects.text import module_text, parse_module
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.search.constraints import constraints_of, is_pinned, strip_pins
from shardwright.passes.search.pin_file import load_pins
from shardwright.passes.search.pins import add_pins, apply_pins
from shardwright.passes.step.step_view import step_functions, step_views
from shardwright.runtime.plan import PlanError

NESTED = """
[[pin]]
preset = "zero1"
axes = ["dp"]
[[pin]]
preset = "tp"
axes = ["tp"]
[[pin]]
value = "wpe.weight"
sharding = '[{}, {"tp"}]'
[[pin]]
value = "wte.weight.grad"
sharding = '[{"dp"}, {}]'
"""
PINS_OF = {"dp": "dp", "zero1": "zero1", "zero3": "zero3", "tp": "tp", "nested": NESTED}
SEARCH = "search-strategy{algorithm=fixed}"


def cluster() -> Cluster:
    return split_cluster(parse_mesh("dp=4,tp=2"))


@cache
def imported() -> ModuleOp:
    """Return a step on two axes; it is shared and must not be changed."""
    module = import_training_step(training_step("gpt2-tiny"))
    add_cluster(module, cluster())
    run_pipeline(Context(), module, "prepare")
    return module


def after(module: ModuleOp, pipeline: str) -> ModuleOp:
    """Return a copy of a module after some passes."""
    made = module.clone()
    run_pipeline(Context(), made, pipeline)
    return made


@pytest.mark.parametrize(("stages", "name"), covering(["", 'partition-stages{stages=2 ranks="4,4"}'], PINS_OF))
def test_constraints_read_from_the_ir_equal_the_pins(name: str, stages: str):
    pins = load_pins(PINS_OF[name])
    module = after(imported(), stages)
    asked = [apply_pins(pins, view) for view, _ in step_views(module)]
    add_pins(module, pins)
    assert [constraints_of(view) for view, _ in step_views(module)] == asked
    text = module_text(module)
    assert module_text(parse_module(context(), text)) == text


@pytest.mark.parametrize("name", ["zero3", "nested"])
def test_searching_from_the_text_finds_the_same_strategy(name: str):
    module = imported().clone()
    add_pins(module, load_pins(PINS_OF[name]))
    again = parse_module(context(), module_text(module))
    assert module_text(after(again, SEARCH)) == module_text(after(module, SEARCH))


@pytest.mark.parametrize("name", PINS_OF)
def test_pins_before_and_after_the_partition_into_stages_are_equal(name: str):
    stages, pins = 'partition-stages{stages=2 ranks="4,4"}', load_pins(PINS_OF[name])
    before, later = imported().clone(), after(imported(), stages)
    add_pins(before, pins)
    run_pipeline(Context(), before, stages)
    add_pins(later, pins)
    for func in (*step_functions(before), *step_functions(later)):
        # The order of this attribute among the others of the function may differ.
        del func.attributes[PINS]
    assert module_text(before) == module_text(later)


def test_pins_are_removed_without_a_trace():
    module = imported().clone()
    text = module_text(module)
    add_pins(module, load_pins(NESTED))
    assert is_pinned(module)
    assert PIN in module_text(module)
    strip_pins(module)
    assert not is_pinned(module)
    assert module_text(module) == text


def test_the_place_of_a_pin_has_the_file_name_without_its_folder(tmp_path: Path):
    path = tmp_path / "my pins.toml"
    path.write_text("# mine\n" + NESTED)
    assert [pin.place for pin in load_pins(path)] == [f"my pins.toml:{line}" for line in (3, 6, 9, 12)]
    assert load_pins(path) == load_pins(NESTED)


def test_pins_are_obeyed_by_every_search_of_a_fixed_point():
    mixed = find_cluster("mixed-4")
    module = import_training_step(training_step("mlp-tiny"))
    add_cluster(module, mixed)
    pins = '[[pin]]\nvalue = "*.weight"\nsharding = \'[{}, {"gpu"}]\'\n'
    passes = PlanOptions("eliminate", pins, ratios="balanced").passes(mixed)
    names = [each.name for each in passes]
    assert names[names.index("add-pins") + 1] == "fixed-point"
    run_pipeline(Context(), module, passes)
    ((view, _),) = step_views(module)
    weights = [given for given in view.inputs if given.role == "train.param" and given.name.endswith(".weight")]
    limits = constraints_of(view).arguments
    assert weights
    for given in weights:
        assert str(limits[given.argument.index].sharding) == '[{}, {"gpu"}]'
    func = next(op for op in module.walk() if isinstance(op, FuncOp))
    assert "spmd.ratios" in func.attributes
    assert PINS in func.attributes


def test_invalid_options_are_refused_by_name():
    with pytest.raises(PlanError, match="algorithm=fastest, expected 'auto' or 'anneal' or 'eliminate' or"):
        PlanOptions("fastest")  # pyright: ignore[reportArgumentType]


def test_messages_name_the_pins_of_a_value_or_op():
    module = imported().clone()
    add_pins(module, load_pins(NESTED))
    ((view, _),) = step_views(module)
    constraints = constraints_of(view)
    named = {given.name: constraints.named(constraints.pinned_by(given.argument)) for given in view.inputs}
    assert named["wpe.weight"] == "pins:8: pin 'wpe.weight' and pins:2: pin preset 'zero1'"
    assert named["wte.weight.exp_avg"] == "pins:2: pin preset 'zero1'"
    ((_, update, _),) = [each for each in view.grads() if each[0] == "wte.weight"]
    assert constraints.named(constraints.pinned_by(update)) == "pins:11: pin 'wte.weight.grad'"
