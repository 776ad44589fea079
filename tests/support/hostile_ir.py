"""
IR that a user might pass by mistake or malice: mutants of IR of the tests and of real steps, and their outcomes.

A mutant is processed like an input of `opt-tool` whose result is emitted. It must succeed, or be refused with one
message.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.nn as nn
import torch.nn.functional as F
from hostile_files import BYTES, ROOT, SECONDS, STEP, Outcome, outcome
from ir_files import chunks, context, mlir_files, run_lines
from ir_mutations import TEXT_MUTATIONS, mutated_ops
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.lexer import Input

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.text import module_text, parse_module
from shardwright.lowering.codegen.emit_python import emit_python
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.pipeline_spec import pass_text
from shardwright.passes.verification import first_fault
from shardwright.tools.diagnostics import DiagnosticError
from shardwright.tools.explain import pass_diagnostic
from shardwright.tools.ir_input import read

_CLUSTERS = ROOT / "examples" / "clusters"
_LOCAL = f'add-cluster{{file="{_CLUSTERS / "local-4.toml"}"}}'
_MIXED = f'add-cluster{{file="{_CLUSTERS / "mixed-4.toml"}"}}'
_BACK = "overlap{bucket_mb=0},reuse-buffers,insert-frees,check-order,check-memory"

_FIRST = "dtype = f32, train.backward, train.loss_gradient}"
"""The attributes of the first op of backward as the importer writes them today; an older importer wrote the step."""

ROADS: tuple[str, ...] = (
    f"{_LOCAL},prepare,search-strategy,communicate,join-updates,{_BACK}",
    f"{_MIXED},prepare,search-strategy,balance-ratios,communicate,{_BACK}",
    f"{_LOCAL},scale-loss,clip-gradients{{norm=1.0}},search-strategy{{parameters=0.1}},insert-resharding,{_BACK}",
    f"{_LOCAL},prepare,search-strategy,split-batch{{parts=2}},communicate,duplex,{_BACK}",
    f"{_LOCAL},prepare,search-strategy,split-batch{{parts=4}},communicate,accumulate,{_BACK}",
    f"{_LOCAL},prepare,search-strategy,recompute{{keep=0.5}},communicate,{_BACK}",
    f"{_MIXED},prepare,partition-stages{{stages=2}},search-strategy,balance-ratios,split-batch{{parts=4}},"
    'split-batch{parts=2 axis="half"},communicate,duplex{axis="half"},overlap,'
    "schedule-pipeline{schedule=eager-1f1b},plan-transfers,reuse-buffers,insert-frees,check-order,check-memory",
    f"{_LOCAL},prepare,partition-stages{{stages=2}},search-strategy,split-batch{{parts=2}},communicate,"
    "schedule-pipeline{schedule=gpipe},plan-transfers{method=local_allgather},annotate-costs",
)
"""Pipelines for real steps; the module after each of their passes is one more text to mutate."""

PASSES: tuple[str, ...] = (
    *(
        "decompose-mean",
        "canonicalize",
        "cse",
        "dce",
        "decompose-batch-norm",
        "decompose-cross-entropy",
        _LOCAL,
        _MIXED,
    ),
    *("add-pins{pins=dp}", "add-pins{pins=zero3}", "add-pins{pins=tp}", "add-pins{pins=zero1 replace=true}"),
    *("draw-independently", "partition-stages{stages=2}", "partition-stages{stages=3 cost=amp}", "search-strategy"),
    *("search-strategy{algorithm=exhaustive}", "search-strategy{memory=20000}", "balance-ratios", "insert-resharding"),
    *("balance-ratios{segments=layers}", "split-batch{parts=2}", 'split-batch{parts=3 axis="half"}', "duplex"),
    *("split-batch{parts=2 unrolled=true}", "select-collectives", "select-collectives{method=hierarchical}"),
    *("chunk-collectives{parts=2}", "chunk-collectives"),
    *("select-collectives{method=padded}", "select-collectives{method=grouped_broadcast}", "accumulate", "overlap"),
    *("overlap{bucket_mb=0}", "overlap{bucket_mb=0.001 in_flight=1}", "overlap{memory=200}", "schedule-pipeline"),
    *("schedule-pipeline{schedule=gpipe}", "schedule-pipeline{schedule=1f1b}", "plan-transfers", "recompute"),
    *("plan-transfers{method=send_recv}", "plan-transfers{method=local_allgather per_host=2}", "recompute{keep=0.3}"),
    *("clip-gradients{norm=1.0}", "clip-gradients{value=1.0}", "scale-loss", "set-reduce-dtype{dtype=bfloat16}"),
    *("join-updates", "join-updates{group_mb=0.01}", "reuse-buffers", "insert-frees"),
    *("check-order", "check-memory", "annotate-costs"),
    *("check-memory{limit=1000}", "annotate-costs{remove=true}", "strip-resharding"),
    'fit-memory{pipeline="search-strategy"}',
    'fixed-point{pipeline="search-strategy,balance-ratios" max=2}',
    "search-plan{budget=1 work=1000 bound_rounds=1}",
)


_PREPARED = "prepare,decompose-batch-norm,canonicalize,cse,dce"
_ENDED = "join-updates,finish"


def imported_steps() -> dict[str, tuple[TrainingStep, tuple[str, ...]]]:
    """Return steps with norms, dropout, lookups, other dtypes and several layers, and the pipelines to run on each."""
    rows, labels = torch.randn(8, 6), torch.randint(0, 4, (8,))
    norms = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))
    words = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(24, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
    adamw, sgd = partial(torch.optim.AdamW, lr=0.1), partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    rounds = f"{_LOCAL},prepare,partition-stages{{stages=2 chunks=2}},search-strategy,split-batch{{parts=2}}"
    cut = f"{_LOCAL},prepare,partition-stages{{stages=2}},search-strategy,split-batch{{parts=4}}"
    return {
        "norms": (
            TrainingStep(norms, F.cross_entropy, adamw, (rows, labels), precision="fp16-mixed", clip_norm=1.0),
            (
                f"{_LOCAL},{_PREPARED},add-pins{{pins=dp}},search-strategy,communicate,overlap,{_ENDED}",
                f"{_MIXED},{_PREPARED},search-strategy,split-batch{{parts=2 unrolled=true}},communicate,duplex,overlap,"
                f"{_ENDED}",
            ),
        ),
        "words": (
            TrainingStep(words, F.cross_entropy, adamw, (torch.randint(0, 9, (8, 3)), labels), precision="bf16-mixed"),
            (
                f"{_LOCAL},skip-non-finite,clip-gradients{{value=1.0}},{_PREPARED},add-pins{{pins=tp}},search-strategy,"
                f"set-reduce-dtype{{dtype=bfloat16}},communicate,chunk-collectives{{parts=2}},overlap,{_ENDED}",
            ),
        ),
        "layers": (
            TrainingStep(layers, F.mse_loss, sgd, (rows, torch.randn(8, 6))),
            (
                f"{rounds},communicate,overlap,schedule-pipeline{{schedule=interleaved-1f1b}},plan-transfers,{_ENDED}",
                f"{cut},communicate,split-backward,overlap,schedule-pipeline{{schedule=zero-bubble}},plan-transfers,{_ENDED}",
                f"{cut},communicate,overlap,schedule-pipeline{{schedule=auto}},mark-compiled,{_ENDED}",
            ),
        ),
    }


@dataclass(frozen=True)
class Seed:
    """A text to mutate, and the pipelines that fit it."""

    name: str
    text: str
    pipelines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutant:
    """A mutated text, and the pipeline to run on it."""

    seed: str
    text: str
    pipeline: str


class Finding(Exception):
    """A forbidden outcome of a mutant; the text names its origin."""


@cache
def file_seeds() -> tuple[Seed, ...]:
    """Return the IR of tests/filecheck, each part with the pipelines of its file."""
    seeds: list[Seed] = []
    for path in mlir_files():
        text = path.read_text(encoding="utf-8")
        options = [re.search(r"--pass-pipeline=('[^']*'|\S+)", line) for line in run_lines(text)]
        pipelines = tuple(each[1].strip("'") for each in options if each and "%" not in each[1])
        for number, chunk in enumerate(chunks(text)):
            plain = re.sub(r"(?m)^\s*//.*\n", "", chunk).strip() + "\n"
            if is_valid(plain) or len(seeds) % 8 == 0:
                seeds.append(Seed(f"{path.stem}#{number}", plain, pipelines))
    return tuple(seeds)


def is_valid(text: str) -> bool:
    """Return whether a text is valid IR; most invalid texts test one message, which their mutants would only repeat."""
    try:
        return first_fault(parse_module(context(), text)) is None
    except ParseError:
        return False


@cache
def step_seeds(roads: Sequence[str] = ROADS) -> tuple[Seed, ...]:
    """Return a real step as imported and after each pass of each of `roads`, with the remaining passes."""
    text = STEP.read_text(encoding="utf-8").replace("dtype = f32, train.backward}", _FIRST, 1)
    return tuple(_seeds_along("road", parse_module(context(), text), roads))


@cache
def imported_seeds() -> tuple[Seed, ...]:
    """Return more kinds of steps, imported with the installed torch, after each pass of their pipelines."""
    seeds: list[Seed] = []
    for name, (step, roads) in imported_steps().items():
        seeds += _seeds_along(name, import_training_step(step), roads)
    return tuple(seeds)


def _seeds_along(name: str, imported: ModuleOp, roads: Sequence[str]) -> Iterator[Seed]:
    for number, road in enumerate(roads):
        passes = split_passes(road)
        module = imported.clone()
        for at, each in enumerate(passes):
            rest = ",".join(passes[at:])
            yield Seed(f"{name}{number}@{at}", module_text(module, locations=bool(at % 2)), (rest, ""))
            run_pipeline(context(), module, each)
        yield from [Seed(f"{name}{number}@end", module_text(module, locations=False), ("",))] * 4


def split_passes(pipeline: str) -> list[str]:
    """Return the passes of a pipeline, each with its options."""
    return list(map(pass_text, Pipeline.parse(pipeline)))


def mutants(seeds: Sequence[Seed], seed: int, count: int) -> Iterator[Mutant]:
    """Yield `count` mutants of some texts, the same ones for the same seed."""
    ctx = context()
    for number in range(count):
        draw = random.Random(f"{seed}.{number}")
        origin = draw.choice(seeds)
        text = origin.text
        if draw.random() < 0.5:
            text = mutated_ops(text, draw, ctx)
        if text == origin.text or draw.random() < 0.2:
            for _ in range(draw.choice((1, 1, 1, 2, 3))):
                text = draw.choice(TEXT_MUTATIONS)(text, draw)
        yield Mutant(origin.name, text, _drawn(origin.pipelines, draw))


def _drawn(own: Sequence[str], draw: random.Random) -> str:
    """Draw the pipeline of a mutant: mostly a pipeline of its seed, else random passes."""
    if own and draw.random() < 0.7:
        return draw.choice(own)
    if draw.random() < 0.2:
        return ",".join(split_passes(draw.choice(ROADS)))
    return ",".join(draw.choice(PASSES) for _ in range(draw.choice((0, 1, 1, 2, 3))))


def become_of(mutant: Mutant, *, seconds: float = SECONDS) -> Outcome:
    """Run a mutant in a forked child and return the outcome."""
    return outcome(partial(use_ir, mutant.pipeline), mutant.text, seconds=seconds)


def become_of_here(mutant: Mutant, *, seconds: int = SECONDS, most: int = BYTES) -> Outcome:
    """Run a mutant in this process, under an alarm and a memory limit, and return the outcome."""
    try:
        with _limited(seconds, most):
            use_ir(mutant.pipeline, mutant.text)
    except TimeoutError as error:
        return Outcome("hang", str(error), seconds)
    except Finding as error:
        return Outcome("internal", str(error), 0.0)
    except DiagnosticException as error:
        return Outcome("refused", str(error), 0.0)
    except DiagnosticError as error:
        return Outcome("refused", str(error), 0.0)
    return Outcome("used", "", 0.0)


@contextmanager
def _limited(seconds: int, most: int) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"not done in {seconds} s")

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most, hard))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def use_ir(pipeline: str, text: str) -> None:
    """
    Read and verify a text, print and read it again in both forms, run passes and emit the result.

    Raises:
        DiagnosticError, PassError, EmitError: the text is refused.
        Finding: something else went wrong.
    """
    source = Input(text, "mutant.mlir")
    try:
        parsed = read(context(), source)
    except DiagnosticError as error:
        _check_message(str(error), error)
        raise
    module = parsed.module
    for generic in (False, True):
        _check_round_trip(module, generic)
    try:
        run_pipeline(context(), module, pipeline)
    except PassError as error:
        if error.kind != "failed":
            raise Finding(f"{error} {_origin(error)}") from error
        _check_message(str(pass_diagnostic(error, source, parsed.spans)), error)
        raise
    _check_round_trip(module, generic=False)
    try:
        emit_python(module, name="step", step_spec=None, versions={})
    except DiagnosticException as error:
        _check_message(str(error), error)
        raise
    except MemoryError:
        raise
    except TimeoutError:
        raise
    except Exception as error:
        raise Finding(f"emission: {type(error).__name__}: {error} {_origin(error)}") from error


_BAD = re.compile(r"cannot be read here|its verifier raised|internal error|object at 0x|Traceback")


def _check_message(message: str, error: Exception | None) -> None:
    """Raise Finding if only the authors of the tool would understand a message."""
    if _BAD.search(message) or not message.strip():
        raise Finding(f"{message[:1000]} {_origin(error) if error else ''}")
    if len(message) > 5000:
        raise Finding(f"a message of {len(message)} characters: {message[:300]}")


def _check_round_trip(module: ModuleOp, generic: bool) -> None:
    form = "generic" if generic else "pretty"
    try:
        text = module_text(module, generic=generic)
        again = module_text(parse_module(context(), text), generic=generic)
    except MemoryError:
        raise
    except Exception as error:
        raise Finding(f"{form} text: {type(error).__name__}: {str(error)[:600]} {_origin(error)}") from error
    if text != again:
        differ = next(f"{a!r} and {b!r}" for a, b in zip(text.split("\n"), again.split("\n"), strict=False) if a != b)
        raise Finding(f"{form} text reads back as another: {differ[:600]}")


def _origin(error: BaseException) -> str:
    """Return the origin of an error: the last lines of this package in its traceback."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "tests/" not in f.filename]
    ours = [f for f in frames if f"/{ROOT.name}/" in f.filename][-2:]
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in (*ours, *frames[-1:])]
    return f"[{type(error).__name__} at {' > '.join(dict.fromkeys(places))}]"
