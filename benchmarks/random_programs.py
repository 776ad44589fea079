"""
Random programs in every way in which a step can be divided: equal to one device, refused, or wrong.

    python benchmarks/random_programs.py [--count 150] [--first N] [--modes plan ...] [--jobs 2]

Half of the programs are layers (`_random_layers.py`), half are graphs of functions (`_random_functions.py`). Each is
planned for four devices on which splitting pays: as the search decides, with the batch accumulated in two parts, in two
stages, in duplex, and in both mixed precisions. The interpreter runs two steps of the plan, and eager PyTorch on one
device is the reference: in float64, or under autocast, where the error of autocast against float32 is the
measure. A program with a block that computes across rows may be refused where the batch is divided; any other refusal
is listed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import torch
from _random_functions import random_functions
from _random_layers import Program, random_layers
from _report import parsed, publish
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
"""The error that a gradient in mixed precision may have: a constant, or a multiple of the error of eager PyTorch."""


@dataclass(frozen=True)
class Mode:
    """How programs are planned: options, the precision, and whether the batch is divided."""

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
    """What became of a program in a mode: `equal`, `refused`, `refused otherwise`, `wrong` or `crash`, and how."""

    program: str
    mode: str
    status: str
    message: str = ""


def outcomes(program: Program, modes: Mapping[str, Mode]) -> Iterator[Outcome]:
    """Try a program in every mode."""
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
    """Return the largest difference between a planned program and one device as text, or nothing if they agree."""
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
        expected, found = reference.step(batch), run.step(batch)
        tolerance = max(EXACT, program.coarse)
        if exact is not None:
            tolerance = max(MIXED, program.coarse, TIMES_OF_EAGER * _largest(expected, exact.step(batch)))
        worst = max(_errors(found, expected), key=lambda each: each.error)
        if not worst.error <= tolerance:
            where = f"{worst.kind} {worst.name} in step {number + 1}"
            return f"{where} is off by {worst.error:.2g}, allowed {tolerance:.2g}"
    return ""


def _errors(found: StepValues, expected: StepValues) -> list[Worst]:
    return list(largest(measure(found, expected, 1).values()).values())


def _largest(found: StepValues, expected: StepValues) -> float:
    return max(each.error for each in _errors(found, expected))


def _try(asked: tuple[str, int, tuple[str, ...]]) -> list[Outcome]:
    kind, number, modes = asked
    warnings.simplefilter("ignore")
    logging.getLogger("shardwright").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    program = {"layers": random_layers, "functions": random_functions}[kind](number)
    return list(outcomes(program, {name: MODES[name] for name in modes}))


def main() -> None:
    """Print the table and write it with everything that is not equal; exit 1 where a program is wrong or crashes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="programs of each of the two kinds")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--kinds", nargs="+", choices=("layers", "functions"), default=["layers", "functions"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parsed(parser, count=1, modes=["plan", "accumulation"])
    numbers = range(options.first, options.first + options.count)
    asked = [(kind, number, tuple(options.modes)) for number in numbers for kind in options.kinds]
    found: list[Outcome] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        for each in (outcome for several in pool.map(_try, asked) for outcome in several):
            found.append(each)
            if each.status not in ("equal", "refused"):
                print(f"{each.status}: {each.mode}: {each.program}\n    {each.message}", flush=True)
    statuses = ("equal", "refused", "refused otherwise", "wrong", "crash")
    counts = Counter((each.mode, each.status) for each in found)
    rows = [{"mode": mode, **{status: counts[mode, status] for status in statuses}} for mode in options.modes]
    rows.append({"mode": "all", **{status: sum(row[status] for row in rows) for status in statuses}})
    rows[-1]["not equal"] = [[each.mode, each.program, each.status, each.message] for each in found if each.message]
    complete = [{**row, "not equal": row.get("not equal", "")} for row in rows]
    command = f"python benchmarks/random_programs.py --count {options.count} --first {options.first}"
    publish("random_programs", complete, command=command, hidden=("not equal",))
    sys.exit(any(each.status in ("wrong", "crash") for each in found))


if __name__ == "__main__":
    main()
