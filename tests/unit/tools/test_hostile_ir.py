"""Invalid IR is refused with one message: minimal cases of former crashes, and mutants."""

from collections.abc import Callable

import pytest
from hostile_files import ROOT
from hostile_ir import ROADS, Mutant, become_of_here, file_seeds, mutants, step_seeds
from ir_files import context
from launches import covering

from shardwright.dialects.text import module_text, parse_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_functions

MESH = 'spmd.mesh @mesh = <["gpu"=2]>\n'
TIMES = 'spmd.mesh @mesh = <["gpu"=2, "micro"=2 temporal]>\n'
STEP = """func.func @step(
  %w: tensor<4xf32> {{train.param = "w"{argument}}}, %lr: tensor<f32> {{train.learning_rate}}) -> (
  tensor<4xf32> {{{result}}}) attributes {{{function}}} {{
  {op}
  func.return %n : tensor<4xf32>
}}
"""
NEG = "%n = aten.neg %w : (tensor<4xf32>) -> tensor<4xf32>"


def step(*, op: str = NEG, argument: str = "", result: str = "train.updates = 0 : i64", function: str = "") -> str:
    """Return a step of one op, with the given attributes."""
    return STEP.format(op=op, argument=argument, result=result, function=function)


def device(fields: str) -> str:
    """Return an op with a device of a cluster."""
    return f'"test.op"() {{a = #spmd.device<"x", {fields}>}} : () -> ()\n'


def attribute(text: str) -> str:
    """Return an op with an attribute."""
    return f'"test.op"() {{a = {text}}} : () -> ()\n'


FRAGMENTS = """  %n = pipe.fragment "f" over "{axis}" -> tensor<4xf32> {{
    %r = aten.neg %w : (tensor<4xf32>) -> tensor<4xf32>
    pipe.yield %r : tensor<4xf32>
  }}"""

PIPELINE = """spmd.mesh @s0 = <["gpu"=2]> on [0, 1]
spmd.mesh @s1 = <["gpu"=2]> on [2, 3]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}) -> tensor<4xf32> attributes {pipe.stages = ["s0", "s1"]} {
  %h = pipe.transfer "h" %x to @s1 out_sharding = <@s1, [{}]> tasks = [#pipe.task<TASK>] : tensor<4xf32>
  func.return %h : tensor<4xf32>
}
"""

SCHEDULED = """spmd.mesh @s0 = <["gpu"=2, "micro"=2 temporal]> on [0, 1]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}) -> tensor<4xf32> attributes {
    pipe.stages = ["s0"], pipe.schedule = SCHEDULE} {
  %n = pipe.fragment "f" stage 0 : i64 over "micro" -> tensor<4xf32> {
    %r = aten.neg %x {pipe.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    pipe.yield %r : tensor<4xf32>
  }
  func.return %n : tensor<4xf32>
}
"""

REFUSED: dict[str, tuple[str | Callable[[], str], str, str]] = {
    "a visibility that is none": (
        '"func.func"() <{function_type = () -> (), sym_name = "f", sym_visibility = ""}> '
        '({ "func.return"() : () -> () }) : () -> ()',
        "",
        'visibility "", expected one of public, private, nested',
    ),
    "a number of 5000 digits": (attribute("9" * 5000), "", "digits"),
    "a number beyond floats": (device(f"flops = {{float32 = {'9' * 400}}}"), "", "a whole number of 1329 bits"),
    "a number beyond its type": (attribute("dense<99999999999999999999> : tensor<2xi64>"), "", "out of range"),
    "deep brackets": (attribute("[" * 3000 + "]" * 3000), "", "nested too deeply to be read"),
    "an axis beyond memory": ('spmd.mesh @m = <["gpu"=50000000]>', "", "has 50000000 devices, expected at most 16384"),
    "an axis beyond words": (f'spmd.mesh @m = <["gpu"=0x{"f" * 5000}]>', "", "more than 10**30 devices"),
    "an axis of time beyond lists": ('spmd.mesh @m = <["t"=9999 temporal]>', "", "9999 parts of time"),
    "an axis that is no name": ('spmd.mesh @m = <["a b"=2]>', "", "axis 'a b'"),
    "a stage where there are none": (
        PIPELINE.replace(' attributes {pipe.stages = ["s0", "s1"]}', "").replace("TASK", "part 0, [0:4], 0 to [2, 3]"),
        "",
        "has a stage, the function has no pipe.stages",
    ),
    "a loop for all stages": (
        PIPELINE.replace("tasks = [#pipe.task<TASK>] ", "").replace('"gpu"=2]', '"gpu"=2, "micro"=2 temporal]'),
        "accumulate",
        "run schedule-pipeline instead of accumulate",
    ),
    "a bandwidth of 0": (
        device("flops = {float32 = 1.0}, bandwidth = 0.0, memory = 1.0, launch = 0.0"),
        "",
        "found 0.0, expected a number from 1 to 1e+18",
    ),
    "offsets of no dim": (attribute("#spmd.sharding<@m, [{}], offsets={7: [0, 1]}>"), "", "offsets are of dim 7"),
    "an update of nothing": (step(result="train.updates = 26 : i64"), "", "train.updates of result 0 is 26, expected"),
    "an update of another type": (step(result="train.updates = 1 : i64"), "", "whose type is tensor<f32>"),
    "a name that is no text": (step(result="train.metric = 3 : i64"), "", "expected text"),
    "two roles": (step(argument=', train.buffer = "b"'), "", "expected one"),
    "two parameters of a name": (step().replace("train.learning_rate", 'train.param = "w"'), "", "names are unique"),
    "a budget that is no number": (
        step(function="spmd.memory_budget = 0x7FF8000000000000 : f64"),
        "",
        "expected a finite number",
    ),
    "a part that is no number": (step(op=NEG.replace(" :", ' {spmd.at = {a = "b"}} :')), "", "a dictionary of whole"),
    "absent that is no list": (step(op=NEG.replace(" :", " {absent = 1 : i64} :")), "", "expected a list of the names"),
    "no type of a function": ('"func.func"() <{sym_name = "f"}> ({\n  func.return\n}) : () -> ()', "", "function_type"),
    "a fragment over devices": (TIMES + step(op=FRAGMENTS.format(axis="gpu")), "", "expected an axis of time"),
    "a fragment over nothing": (TIMES + step(op=FRAGMENTS.format(axis="x")), "", "expected an axis of time"),
    "a sender of another stage": (PIPELINE.replace("TASK", "part 0, [0:4], 19 to [2]"), "", "rank 19 sends"),
    "a receiver of another stage": (PIPELINE.replace("TASK", "part 0, [0:4], 0 to [1]"), "", "rank 1 receives"),
    "a part that is not there": (PIPELINE.replace("TASK", "part 7, [0:4], 0 to [2]"), "", "part 7 is sent"),
    "a slot of no fragment": (SCHEDULED.replace("SCHEDULE", '[[#pipe.slot<run "g" 0>]]'), "", "is no fragment"),
    "a slot of no part": (SCHEDULED.replace("SCHEDULE", '[[#pipe.slot<run "f" 2>]]'), "", "has no such part"),
    "a slot that lacks": (SCHEDULED.replace("SCHEDULE", '[[#pipe.slot<run "f" 0>]]'), "", 'lacks run "f" 1'),
    "a schedule of no lists": (SCHEDULED.replace("SCHEDULE", "[1 : i64]"), "", "a list of lists of #pipe.slots"),
    "a use after it is freed": (
        step(op=f"{NEG}\n  spmd.free %n : tensor<4xf32>"),
        "",
        "after its memory was given back",
    ),
    "a value of the inside": (
        TIMES + step(op=FRAGMENTS.format(axis="micro") + "\n  %m = aten.neg %r : (tensor<4xf32>) -> tensor<4xf32>"),
        "",
        "not defined",
    ),
    "a signature of one for several": (
        MESH
        + """func.func @f(%a: tensor<4xf32>, %b: tensor<8xf32>) -> (tensor<4xf32>, tensor<8xf32>) {
  %c, %d = train.foreach "aten.neg" lists = ["self"] %a, %b {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>}
    : (tensor<4xf32>, tensor<8xf32>) -> (tensor<4xf32>, tensor<8xf32>)
  func.return %c, %d : tensor<4xf32>, tensor<8xf32>
}
""",
        "",
        "has a signature of 1 operands and 1 results, expected 2 and 2",
    ),
    "a sum of squares of two dtypes": (
        """func.func @f(%a: tensor<4xf32>, %b: tensor<8xbf16>) -> tensor<f32> {
  %c = train.sum_of_squares %a, %b : (tensor<4xf32>, tensor<8xbf16>) -> tensor<f32>
  func.return %c : tensor<f32>
}
""",
        "",
        "has operands of bfloat16 and float32, expected one dtype",
    ),
    "a narrow sum of squares": (
        """func.func @f(%a: tensor<4xbf16>) -> tensor<bf16> {
  %c = train.sum_of_squares %a : (tensor<4xbf16>) -> tensor<bf16>
  func.return %c : tensor<bf16>
}
""",
        "",
        "of bfloat16 returns bfloat16, expected a number of float32",
    ),
    "a sum of squares of parts and wholes": (
        MESH
        + """func.func @f(%a: tensor<4xf32>, %b: tensor<8xf32>) -> tensor<f32> {
  %c = train.sum_of_squares %a, %b {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], [{}]) -> ([], unreduced={"gpu"})>}
    : (tensor<4xf32>, tensor<8xf32>) -> tensor<f32>
  func.return %c : tensor<f32>
}
""",
        "",
        "is not one that the op's rule",
    ),
    "a value of the outside": (
        TIMES + step(op=FRAGMENTS.format(axis="micro").replace("yield %r", "yield %n")),
        "",
        "is a result of the op around it",
    ),
    "a fragment before it is made": (
        TIMES + step(op=FRAGMENTS.format(axis="micro")),
        "accumulate",
        "run accumulate before schedule-pipeline",
    ),
    "an axis of a mesh inside of a function": (step(op=f"spmd.mesh @m = <[]>\n  {NEG}"), "", "parent"),
    "too many assignments": (
        lambda: next(seed.text for seed in step_seeds() if seed.name == "road0@5"),
        "search-strategy{algorithm=exhaustive without=completion}",
        "too many to try",
    ),
    "what a loop gives back of its surroundings": (
        TIMES
        + step(op=FRAGMENTS.format(axis="micro").replace("pipe.yield", "spmd.free %w : tensor<4xf32>\n    pipe.yield")),
        "",
        "frees %w of another block",
    ),
    "a part that is returned": (
        TIMES
        + """func.func @step(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<f32> {
  %p = spmd.slice [{"micro"}] %x out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
  %d = aten.sum %p {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
    : (tensor<8xf32>) -> tensor<f32>
  func.return %d : tensor<f32>
}
""",
        "duplex",
        'reads %d outside the loop over "micro", where it differs between parts',
    ),
    "a collective that was started": (
        lambda: next(seed.text for seed in step_seeds() if "spmd.start" in seed.text),
        "insert-resharding",
        "run insert-resharding before overlap",
    ),
    "a step that is accumulated": (
        TIMES + step(op=FRAGMENTS.format(axis="micro")),
        "duplex",
        "run duplex before schedule-pipeline and accumulate",
    ),
    "a slot of a transfer that is not there": (
        SCHEDULED.replace("SCHEDULE", '[[#pipe.slot<run "f" 0>, #pipe.slot<run "f" 1>, #pipe.slot<start "g" 0>]]'),
        "",
        'start "g" 0 is no fragment or transfer of this stage',
    ),
    "elements that no tensor has": (attribute("1.0 : f80"), "", "no tensor has elements of f80"),
    "a step with collectives": (
        MESH + step(op=NEG.replace("%n", "%m") + "\n  %n = spmd.reshard %m to <@mesh, [{}]> : tensor<4xf32>"),
        "clip-gradients{norm=1.0}",
        "run clip-gradients before insert-resharding",
    ),
}
"""Refused inputs: a text, the pipeline to run, and a part of the message."""


@pytest.mark.parametrize(("text", "pipeline", "message"), REFUSED.values(), ids=REFUSED)
def test_ir_is_refused_with_its_reason(text: str | Callable[[], str], pipeline: str, message: str):
    found = become_of_here(Mutant("case", text if isinstance(text, str) else text(), pipeline))
    assert found.status == "refused", found
    assert message in found.message


NO_STEP = """func.func @f(%a: i32, %b: i32) -> i32 {
  %c = arith.addi %a, %b : i32
  func.return %c : i32
}
"""


@pytest.mark.parametrize("passes", ["search-strategy{memory=20000},balance-ratios{segments=layers}", "search-plan"])
@pytest.mark.parametrize("text", ["builtin.module {}", NO_STEP], ids=["no function", "no function of tensors"])
def test_a_module_without_a_step_is_not_changed(text: str, passes: str):
    cluster = ROOT / "examples" / "clusters" / "local-4.toml"
    module = parse_module(context(), text)
    run_pipeline(context(), module, f'add-cluster{{file="{cluster}"}},{passes}')
    assert "spmd.cluster" in module_text(module)
    assert not step_functions(module)


@pytest.mark.parametrize("first", covering(range(2)))
def test_mutants_are_used_or_refused(first: int):
    """Every second mutant is tried, from the first one or from the second one."""
    used = 0
    for mutant in list(mutants((*file_seeds(), *step_seeds()), seed=7, count=200))[first::2]:
        found = become_of_here(mutant)
        assert found.is_clean, f"{found}\n{mutant.pipeline}\n{mutant.text[:3000]}"
        used += found.status == "used"
    assert used, "all mutants are refused"


@pytest.mark.parametrize("road", covering(ROADS))
def test_texts_are_used_before_they_are_mutated(road: str):
    *_, seed = step_seeds((road,))
    for pipeline in ("", "annotate-costs"):
        found = become_of_here(Mutant(seed.name, seed.text, pipeline))
        assert found.status == "used", f"{found}\n{pipeline}\n{seed.text[:3000]}"
