"""The text of a pipeline becomes passes, or an error that points at the wrong part."""

from dataclasses import dataclass
from typing import Literal

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from shardwright.passes.pipeline import Pipeline
from shardwright.passes.pipeline_spec import PipelineError, options_of, parse_pipeline


class Inert(ModulePass):
    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise AssertionError("only parsed here")


@dataclass(frozen=True)
class Search(Inert):
    name = "search"
    algorithm: Literal["exact", "greedy"] = "exact"
    budget: int | float = 1.5
    max_steps: int | None = None
    weights: tuple[float, ...] = ()
    quiet: bool = False


@dataclass(frozen=True)
class Repeat(Inert):
    name = "repeat"
    pipeline: str
    times: int = 3

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times must be at least 1, not {self.times}")


PASSES = {"search": lambda: Search, "repeat": lambda: Repeat, "broken": lambda: missing_library()}


def missing_library() -> type[ModulePass]:
    raise ImportError("No module named 'solver'")


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", ()),
        ("search", (Search(),)),
        ("search{algorithm=greedy budget=2}", (Search("greedy", 2),)),
        ("search{max-steps=4 weights=1.0,2.5 quiet=true}", (Search("exact", 1.5, 4, (1.0, 2.5), True),)),
        ("search{max_steps=4},search", (Search(max_steps=4), Search())),
        ("search{max-steps}", (Search(),)),
        ('repeat{pipeline="search{quiet=true},search" times=2}', (Repeat("search{quiet=true},search", 2),)),
        (r'repeat{pipeline="repeat{pipeline=\"search\"}"}', (Repeat('repeat{pipeline="search"}'),)),
    ],
)
def test_pipelines_are_parsed(text: str, passes: tuple[ModulePass, ...]):
    assert parse_pipeline(text, PASSES) == passes


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        ((), ""),
        ((Search(),), "search"),
        ((Search("greedy", 1e-7, 4, (1.0, 2.5), True), Search(budget=2)), None),
        ((Repeat("search"), Repeat("")), 'repeat{pipeline=search},repeat{pipeline=""}'),
        ((Repeat("4"), Repeat("true"), Repeat("4x4"), Repeat("a/b")), None),
        ((Repeat(str(Pipeline.of(Repeat('x="\\"\n\t{}'), Search("greedy")))),), None),
    ],
)
def test_the_printed_pipeline_reads_back(passes: tuple[ModulePass, ...], text: str | None):
    made = str(Pipeline(passes))
    assert Pipeline.parse(made, PASSES) == Pipeline(passes)
    assert text is None or made == text


def test_pipelines_are_built_from_passes_and_pipelines():
    inner = Pipeline.of(Search(), [Repeat("search")])
    assert list(Pipeline.of(Search(budget=2), inner, [])) == [Search(budget=2), Search(), Repeat("search")]


def test_a_pipeline_inside_an_option_is_a_pipeline():
    (outer,) = parse_pipeline('repeat{pipeline="search{budget=2},search"}', PASSES)
    assert isinstance(outer, Repeat)
    assert parse_pipeline(outer.pipeline, PASSES) == (Search(budget=2), Search())


SEARCH_OPTIONS = (
    "algorithm: exact | greedy = exact; budget: int | float = 1.5; max-steps: int | none = none; "
    "weights: float,... = none; quiet: bool = false"
)


@pytest.mark.parametrize(
    ("text", "wrong", "message", "hint"),
    [
        ("serch", "serch", "unknown pass 'serch'", "did you mean 'search'?"),
        ("search,xyz,search", "xyz", "unknown pass 'xyz'", ""),
        ("search{algoritm=greedy}", "algoritm", "pass 'search' has no option 'algoritm'", SEARCH_OPTIONS),
        ("search{algoritm=greedy}", "algoritm", "pass 'search' has no option", "did you mean 'algorithm'?"),
        ("search{algorithm=best}", "algorithm", "takes exact | greedy, not 'best'", SEARCH_OPTIONS),
        ("search,search{budget=much}", "budget", "takes int | float, not 'much'", SEARCH_OPTIONS),
        ("search{quiet}", "quiet", "takes bool, not 'no value'", SEARCH_OPTIONS),
        ("search{quiet=true quiet=false}", "quiet", "option 'quiet' is given twice", ""),
        ("repeat{times=2}", "repeat", "pass 'repeat' needs its option 'pipeline'", "pipeline: str; times"),
        ("repeat{pipeline=a times=0}", "repeat", "refuses its options: times must be at least 1, not 0", ""),
        ("program{mode=duplex parts=2 per_part=true}", "program", "refuses its options: per_part is for micro-b", ""),
        ("program{per_part=true}", "program", "refuses its options: per_part is for micro-batches", ""),
        ("broken", "broken", "pass 'broken' cannot be loaded: No module named 'solver'", ""),
        ("search repeat", " ", "expected a comma", "passes are parted by a comma alone"),
        ("search, repeat", " ", "expected pass name", "passes are parted by a comma alone"),
        ("search{", "", "expected argument name", "ends too early"),
        ("repeat{pipeline=[a,b]}", "[a,b]", "unknown argument value", "a nested pipeline is a quoted string"),
        ("repeat{pipeline=a/b}", "/", "unknown token", "quote a path"),
        ("builtin.module(search)", ".", "unknown token", "no builtin.module(...)"),
        ('repeat{pipeline="a}', '"', "unknown token", "not closed"),
        (r'repeat{pipeline="\f"}', r'"\f"', "invalid escape sequence", ""),
        ("é", "é", "unknown token", "write pass{option=value"),
        ("search{budget=}", "}", "unknown argument value", ""),
    ],
)
def test_errors_point_at_the_wrong_part(text: str, wrong: str, message: str, hint: str):
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text, PASSES)
    error = caught.value
    assert message in error.message
    assert text[error.start : error.end] == wrong
    assert hint in error.hint
    assert f"  {text}\n  {' ' * error.start}^" in str(error)


def test_repeated_options_point_at_the_second():
    with pytest.raises(PipelineError) as caught:
        parse_pipeline("search{quiet=true quiet=false}", PASSES)
    assert caught.value.start == len("search{quiet=true ")


def test_passes_of_xdsl_are_known_too():
    (canonicalize,) = parse_pipeline("canonicalize")
    assert canonicalize.name == "canonicalize"
    with pytest.raises(PipelineError, match="did you mean 'canonicalize'"):
        parse_pipeline("canonicalise")


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("program", "communicate,overlap,join-updates"),
        ("program{parts=4}", "split-batch{parts=4},communicate,accumulate,overlap,join-updates"),
        ("program{mode=duplex parts=2}", "split-batch{unrolled=true},communicate,duplex,overlap,join-updates"),
        ("program{chunked=true}", "communicate,chunk-collectives,overlap,join-updates"),
        ("program{mode=pipeline}", "program,split-backward,plan-transfers"),
        (
            "program{mode=pipeline parts=2 schedule=1f1b}",
            "split-batch,program,split-backward,plan-transfers,schedule-pipeline{schedule=1f1b axis=micro}",
        ),
        ('fixed-point{pipeline="prepare"}', "fixed-point{pipeline=prepare}"),
    ],
)
def test_a_named_pipeline_is_its_passes(name: str, passes: str):
    assert Pipeline.parse(name) == Pipeline.parse(passes)
    assert Pipeline.of(f"cse,{name}", "dce") == Pipeline.parse(f"cse,{passes},dce")


@pytest.mark.parametrize(
    ("text", "wrong", "message", "hint"),
    [
        ("dce,finsh", "finsh", "unknown pass 'finsh'", "did you mean 'finish'?"),
        ("program{part=4}", "part", "pass 'program' has no option 'part'", "did you mean 'parts'?"),
        ("program{mode=parts}", "mode", "takes whole | accumulate | duplex | pipeline | none", "parts: int = 1"),
    ],
)
def test_errors_of_named_pipelines_point_at_the_wrong_part(text: str, wrong: str, message: str, hint: str):
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text)
    assert message in caught.value.message
    assert text[caught.value.start : caught.value.end] == wrong
    assert hint in caught.value.hint


def test_options_are_listed_in_order():
    assert "; ".join(map(str, options_of(Search))) == SEARCH_OPTIONS
    assert [option.default for option in options_of(Repeat)] == [None, "3"]
