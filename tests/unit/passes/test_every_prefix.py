"""All passes in one string: after each of them the IR verifies, prints, parses back and computes the same."""

from ir_files import context
from road import ROAD_PASSES, imported_road
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from shardwright.dialects.text import module_text, parse_module
from shardwright.lowering.interpreter.verify_numerics import check_pass
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.verification import first_fault


def test_every_prefix_parses_back_and_computes_the_same():
    given = imported_road()
    seen: list[str] = []

    def look(each: ModulePass, module: ModuleOp) -> None:
        text = module_text(module)
        back = parse_module(context(), text, f"after {each.name}")
        assert first_fault(back) is None
        assert module_text(back) == text
        check_pass(given, back, each.name)
        seen.append(each.name)

    lowered = given.clone()
    run_pipeline(context(), lowered, ROAD_PASSES, on_after=look)
    assert seen == [each.name for each in Pipeline.parse(ROAD_PASSES)]
    text = module_text(lowered)
    assert "offsets={0: [0, 51, 64]}" in text, "the fast rank of the first stage has four fifths, the slow one the rest"
    for made in ('pipe.fragment "forward0" stage 0', "spmd.accumulate", "pipe.schedule", "tasks = [#pipe.task<"):
        assert made in text
