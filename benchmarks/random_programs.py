"""
Plan random programs in every way to divide a step, and check that they equal one device or are refused.

    python benchmarks/random_programs.py [--count 300] [--first N] [--modes plan ...] [--jobs 2]

The programs are models of `_random_layers.py`. Each is planned for four devices where splitting pays: as the search
decides, with the batch accumulated in two parts, in two stages, in duplex, and in both mixed precisions. The
interpreter runs two steps of the plan. The reference is eager PyTorch on one device, in float64 or under autocast;
under autocast the tolerance is relative to the error of autocast against float32. A program with a block that computes
across rows may be refused if the batch is divided; any other refusal is listed.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context

import torch
from _random_layers import Program, random_layers
from _report import arguments, parsed, publish, quiet
from split_cluster import split_cluster

from shardwright.api.checking.comparison import StepValues, Worst, largest, measure
from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.checking.reference import EagerRun, vary_batch
from shardwright.api.compile import PlanOptions, import_training_step, lower
from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.capture import CaptureError
from shardwright.passes.errors import PassError

MESH = Mesh.of(gpu=4)
STEPS = 2
EXACT = 1e-8
MIXED, TIMES_OF_EAGER = 3e-2, 6.0
"""Tolerated errors of a gradient in mixed precision: a constant, and a multiple of eager PyTorch's error."""


@dataclass(frozen=True)
class Mode:
    """A way of planning: options, precision, and whether the batch is divided."""

    options: PlanOptions
    precision: str | None = None
    divides: bool = False


MODES: Mapping[str, Mode] = {
    "plan": Mode(PlanOptions()),
    "accumulation": Mode(PlanOptions(stages=1, micro_batches=2, duplex="no"), divides=True),
    "stages": Mode(PlanOptions(stages=2, micro_batches=2), divides=True),
    "duplex": Mode(PlanOptions(duplex="yes"), divides=True),
    "bf16-mixed": Mode(PlanOptions(), "bf16-mixed"),
    "fp16-mixed": Mode(PlanOptions(), "fp16-mixed"),
}


@dataclass(frozen=True)
class Outcome:
    """The result of a program in a mode: `equal`, `refused`, `refused otherwise`, `wrong` or `crash`, and a message."""

    program: str
    mode: str
    status: str
    message: str = ""


def outcomes(program: Program, modes: Mapping[str, Mode]) -> Iterator[Outcome]:
    """Plan and check a program in every mode, and yield the results."""
    for name, mode in modes.items():
        try:
            problem = difference(program, mode)
            yield Outcome(program.name, name, "wrong" if problem else "equal", problem)
        except (PassError, CaptureError) as error:
            refused = "refused" if mode.divides and program.whole else "refused otherwise"
            yield Outcome(program.name, name, "crash" if "crashed:" in str(error) else refused, str(error)[:600])
        except Exception:
            yield Outcome(program.name, name, "crash", traceback.format_exc()[-1500:])


def difference(program: Program, mode: Mode) -> str:
    """Return the largest difference between a planned program and one device as text, or "" if they agree."""
    step = replace(program.make(), precision=mode.precision)
    dtype = torch.float64 if mode.precision is None else torch.float32
    module = import_training_step(step, dtype=dtype, gradients=True)
    planned = lower(module, split_cluster(MESH), replace(mode.options, dtype=dtype, gradients=True, budget=20.0),
                    name="random", step_spec=None, seconds={}).module  # fmt: skip
    run = InterpretedRun(planned, EagerRun(step, dtype, 0).model)
    reference = EagerRun(step, dtype, 0)
    exact = EagerRun(replace(step, precision=None), torch.float32, 0) if mode.precision else None
    for number in range(STEPS if exact is None else 1):
        batch = vary_batch(step.batch, number, dtype)
        expected, actual = reference.step(batch), run.step(batch)
        tolerance = max(EXACT, program.coarse)
        if exact is not None:
            tolerance = max(MIXED, program.coarse, TIMES_OF_EAGER * _largest(expected, exact.step(batch)))
        worst = max(_errors(actual, expected), key=lambda error: error.error)
        if not worst.error <= tolerance:
            where = f"{worst.kind} {worst.name} in step {number + 1}"
            return f"{where} is off by {worst.error:.2g}, allowed {tolerance:.2g}"
    return ""


def _errors(found: StepValues, expected: StepValues) -> list[Worst]:
    return list(largest(measure(found, expected, 1).values()).values())


def _largest(found: StepValues, expected: StepValues) -> float:
    return max(error.error for error in _errors(found, expected))


def _try(modes: Sequence[str], number: int) -> list[Outcome]:
    quiet()
    torch.set_num_threads(1)
    return list(outcomes(random_layers(number), {name: MODES[name] for name in modes}))


def main() -> None:
    """Print and write the table with all outcomes that are not equal; exit with 1 if a program is wrong or crashes."""
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=300, help="number of programs")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    options = parsed(parser, count=2, modes=["plan", "accumulation"])
    numbers = range(options.first, options.first + options.count)
    results: list[Outcome] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        for item in chain.from_iterable(pool.map(partial(_try, options.modes), numbers)):
            results.append(item)
            if item.status not in ("equal", "refused"):
                print(f"{item.status}: {item.mode}: {item.program}\n    {item.message}", flush=True)
    statuses = ("equal", "refused", "refused otherwise", "wrong", "crash")
    counts = Counter((item.mode, item.status) for item in results)
    rows = [{"mode": mode, **{status: counts[mode, status] for status in statuses}} for mode in options.modes]
    rows.append({"mode": "all", **{status: sum(row[status] for row in rows) for status in statuses}})
    rows[-1]["not equal"] = [[item.mode, item.program, item.status, item.message] for item in results if item.message]
    publish("random_programs", rows, hidden=("not equal",))
    sys.exit(any(item.status in ("wrong", "crash") for item in results))


if __name__ == "__main__":
    main()
