"""
Every op of torch's own test database, sharded at random: what runs, what is wrong, what is split; beside DTensor.

    python benchmarks/opinfo.py [--samples N] [--ops PATTERN] [--no-dtensor]

For each op that takes float32 on the CPU, up to N samples of torch's, and N more of sizes that four divides, are
traced to IR and run in the interpreter on four ranks (one axis of 4, and 2x2), every op of the trace with a signature
drawn at random, splits that are uneven or leave a rank without a part among them; and must give what eager PyTorch
gives. DTensor gets the N samples of sizes that four divides, as in torch's own tests of it, each with its inputs split
evenly at random.

An op counts as `run` if all its samples were; as `wrong` if one of them gave something else without an error; as
`sharded` if at least one op of a trace has a signature, or under DTensor was run, with an operand or result in parts.
Of random ops and of `empty` the values are not compared with torch's: random numbers are compared with those that one
device draws here, and of `empty` shapes and dtypes alone.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import random
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _report import parsed, publish
from import_function import ImportedFunction, import_function
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.compute import SIGNATURE, ComputeOp, dtype_of
from shardwright.dialects.mesh_ops import MeshOp
from shardwright.dialects.sharding_attrs import SignatureAttr
from shardwright.ir.mesh import Mesh
from shardwright.ir.signatures import Signature
from shardwright.lowering.interpreter.interpreter import find_function, interpret
from shardwright.lowering.probe.soundness import spread_signatures

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))


MESHES = (Mesh.of(x=4), Mesh.of(x=2, y=2))
TOLERANCE = 1e-4
"""Of the largest element, in float32."""

COARSE = 2e-2
"""The same in half precision."""

ODD_SIZES = {"L": 20, "M": 10, "S": 5, "XS": 3}
EVEN_SIZES = {"L": 24, "M": 12, "S": 4, "XS": 2}
"""Torch's own sizes, and those that its tests of DTensor put in their place, which four ranks divide."""

_FORK = multiprocessing.get_context("fork")
_BLANK = re.compile(r"(new_)?empty(_like|_strided|_permuted)?")
_FOR_TORCHS_SIZES = frozenset({"_segment_reduce", "nn.functional.embedding", "nn.functional.embedding_bag"})
"""Ops of whose samples some have offsets or indices written for torch's sizes: with others they read past the end."""


@dataclass
class Outcome:
    """What became of one op under one system."""

    runs: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    sharded: bool = False

    @property
    def verdict(self) -> str:
        """In one word."""
        return "wrong" if self.wrong else "refused" if self.refused else "run" if self.runs else "no samples"


@dataclass(frozen=True)
class Sample:
    """A use of an op as a function of its tensors alone."""

    function: Callable[..., list[torch.Tensor]]
    inputs: list[torch.Tensor]


def samples_of(info: Any, most: int, sizes: Mapping[str, int]) -> Iterator[Sample]:
    """Yield up to `most` samples of an op, with torch's dims of these sizes."""
    try:
        found = _drawn(info, most, sizes)
    except (RuntimeError, IndexError):
        # Some samples are written for torch's own sizes.
        found = _drawn(info, most, ODD_SIZES)
    for given in found:
        leaves, spec = pytree.tree_flatten((given.input, given.args, given.kwargs))
        tensors = [_by_value(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

        def function(*parts: torch.Tensor, leaves: Any = leaves, spec: Any = spec) -> list[torch.Tensor]:
            rest = iter(parts)
            filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            result = info.op(first, *args, **kwargs)
            return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

        yield Sample(function, tensors)


def _drawn(info: Any, most: int, sizes: Mapping[str, int]) -> list[Any]:
    for name, size in (ODD_SIZES if info.name in _FOR_TORCHS_SIZES else sizes).items():
        setattr(common_methods_invocations, name, size)
    return list(itertools.islice(info.sample_inputs("cpu", torch.float32), most))


def _by_value(given: torch.Tensor) -> torch.Tensor:
    return given.detach().contiguous() if given.layout is torch.strided else given.detach()


def run_ours(info: Any, most: int, drawn: random.Random) -> Outcome:
    """Run an op's samples, of sizes that divide and of sizes that do not, under random signatures."""
    outcome = Outcome()
    for sample in itertools.chain(samples_of(info, most, ODD_SIZES), samples_of(info, most, EVEN_SIZES)):
        try:
            imported = import_function(sample.function, sample.inputs)
            expected = interpret(imported.module, imported.inputs)
            if not imported.draws and not _BLANK.fullmatch(info.name):
                eager = sample.function(*(each.clone() for each in sample.inputs))
                _compare(outcome, "imported", expected, eager)
            for mesh in MESHES:
                module = sharded(imported, mesh, drawn, outcome)
                found = interpret(module, imported.inputs, check_replicas=not _BLANK.fullmatch(info.name))
                _compare(outcome, f"on {mesh}", found, expected, values=not _BLANK.fullmatch(info.name))
            outcome.runs += 1
        except Exception as error:
            outcome.refused.append(_error_text(error))
    return outcome


def sharded(imported: ImportedFunction, mesh: Mesh, drawn: random.Random, outcome: Outcome) -> ModuleOp:
    """Give every op a signature at random, mostly one that splits something."""
    module = imported.module.clone()
    module.body.block.insert_ops_before([MeshOp(mesh)], find_function(module))
    for op in module.walk():
        if isinstance(op, ComputeOp):
            every = [each for each in spread_signatures(op.rule(), mesh, uneven=True) if _is_legal(op, each)]
            split = [each for each in every if not _is_whole(each)]
            outcome.sharded |= bool(split)
            chosen = drawn.choice(split if split and drawn.random() < 0.8 else every)
            op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, chosen)
    return module


def _is_legal(op: ComputeOp, signature: Signature) -> bool:
    """Whether it makes sums of numbers only: a boolean is no sum of booleans."""
    pairs = zip(op.args, signature.operands, strict=True)
    return not any(sharding.partial and dtype_of(value) == "bool" for value, sharding in pairs)


def _is_whole(signature: Signature) -> bool:
    return all(each.is_replicated for each in (*signature.operands, *signature.results))


def run_dtensor(runner: Any, info: Any, most: int, drawn: random.Random) -> Outcome:
    """Run an op's samples on DTensors."""
    outcome = Outcome()
    runner.begin()
    for sample in samples_of(info, most, EVEN_SIZES):
        try:
            torch.manual_seed(0)
            expected = sample.function(*(each.clone() for each in sample.inputs))
            for _ in MESHES:
                torch.manual_seed(0)
                found = runner.run(sample.function, [each.clone() for each in sample.inputs], drawn)
                _compare(outcome, "dtensor", found, expected, values=not _BLANK.fullmatch(info.name))
            outcome.runs += 1
        except Exception as error:
            outcome.refused.append(_error_text(error))
    outcome.sharded = runner.sharded
    return outcome


def apart(run: Callable[..., Outcome], *given: Any) -> Outcome:
    """The outcome of a run in a process of its own, for a kernel may kill that."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=lambda: sender.send(run(*given)))
    process.start()
    sender.close()
    outcome = Outcome(refused=["killed after a minute"])
    if receiver.poll(60):
        try:
            outcome = receiver.recv()
        except EOFError:
            outcome = Outcome(refused=["the process died"])
    process.kill()
    process.join()
    return outcome


def _compare(
    outcome: Outcome, what: str, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], *, values: bool = True
) -> None:
    if len(found) != len(expected):
        outcome.wrong.append(f"{what}: {len(found)} results of {len(expected)}")
    for one, other in zip(found, expected, strict=False):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            outcome.wrong.append(f"{what}: {list(one.shape)} {one.dtype}, expected {list(other.shape)} {other.dtype}")
        elif values and not _close(one, other):
            outcome.wrong.append(f"{what}: other values")


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not (other.is_floating_point() or other.is_complex()):
        return torch.equal(one, other)
    tolerance = TOLERANCE if other.dtype not in (torch.float16, torch.bfloat16) else COARSE
    finite = other[other.isfinite()]
    size = finite.abs().max().item() if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * max(size, 1e-2), equal_nan=True)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def main() -> None:
    """Run both systems over the database and publish the counts, and what is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--ops", default="", help="a regular expression of names")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth op alone, from op I, to run N at once")
    parser.add_argument("--no-dtensor", dest="dtensor", action="store_false")
    options = parsed(parser, samples=1, ops="functional.relu$")
    warnings.simplefilter("ignore")
    logging.getLogger("shardwright").setLevel(logging.ERROR)
    runner = None
    if options.dtensor:
        from _dtensor_ops import DTensorRunner

        runner = DTensorRunner()
    floats = (info for info in op_db if torch.float32 in info.supported_dtypes("cpu"))
    part, parts = map(int, options.part.split("/"))
    infos = [info for info in floats if re.search(options.ops, info.name)][part::parts]
    outcomes: dict[str, dict[str, Outcome]] = {"shardwright": {}, "DTensor": {}}
    seconds: dict[str, float] = defaultdict(float)
    for number, info in enumerate(infos):
        name = f"{info.name}.{info.variant_test_name}".rstrip(".")
        start = perf_counter()
        outcomes["shardwright"][name] = apart(run_ours, info, options.samples, random.Random(number))
        seconds["shardwright"] += perf_counter() - start
        if outcomes["shardwright"][name].verdict != "run":
            print(name, outcomes["shardwright"][name], flush=True)
        if runner is not None:
            start = perf_counter()
            beside = partial(run_dtensor, runner)
            outcomes["DTensor"][name] = apart(beside, info, options.samples, random.Random(number))
            seconds["DTensor"] += perf_counter() - start
    rows: list[dict[str, Any]] = []
    for system, found in outcomes.items():
        if found:
            counts = Counter(each.verdict for each in found.values())
            sharded_ops = sum(each.sharded and each.verdict == "run" for each in found.values())
            rows.append(
                {
                    "system": system,
                    "ops": len(found),
                    **{verdict: counts[verdict] for verdict in ("run", "wrong", "refused", "no samples")},
                    "run and sharded": sharded_ops,
                    "samples run": sum(each.runs for each in found.values()),
                    "s": round(seconds[system]),
                    "not run": {n: (o.wrong or o.refused)[0] for n, o in found.items() if o.wrong or o.refused},
                }
            )
    name = "opinfo" if parts == 1 else f"opinfo-{part}-of-{parts}"
    publish(name, rows, command=f"python benchmarks/opinfo.py --samples {options.samples}", hidden=("not run",))


if __name__ == "__main__":
    main()
