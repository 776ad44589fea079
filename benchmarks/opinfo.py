"""
Shard every op of torch's own test database at random, compare results with eager PyTorch, and do the same with DTensor.

    python benchmarks/opinfo.py [--samples N] [--ops PATTERN] [--no-dtensor]

Each op that supports float32 on the CPU is traced to IR for up to N of torch's samples, and N more whose sizes are
divisible by four. The interpreter runs them on four ranks (one axis of 4, and 2x2) under random signatures, whose
splits may be uneven or leave a rank an empty shard. DTensor gets the samples whose sizes are divisible by four, each
with its inputs split evenly at random.

An op counts as `run` if all its samples ran, and as `wrong` if a sample gave a different result without an error. It
counts as `sharded` if a random signature could split an operand or result of an op of a trace (under DTensor: if an op
ran with a sharded operand or result). Random numbers are compared with the interpreter's own on one device, and `empty`
only in shapes and dtypes.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from _report import arguments, parsed, publish, quiet
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
from shardwright.lowering.probe.apart import DiedError, run_apart
from shardwright.lowering.probe.soundness import spread_signatures

MESHES = (Mesh.of(x=4), Mesh.of(x=2, y=2))
TOLERANCE = 1e-4
"""Tolerance in float32, relative to the largest element."""

COARSE = 2e-2
"""Tolerance in half precision, relative to the largest element."""

ODD_SIZES = {"L": 20, "M": 10, "S": 5, "XS": 3}
EVEN_SIZES = {"L": 24, "M": 12, "S": 4, "XS": 2}
"""Torch's own sizes are odd. Torch's DTensor tests replace them by even sizes, which four ranks divide."""

_BLANK = re.compile(r"(new_)?empty(_like|_strided|_permuted)?")
_FOR_TORCHS_SIZES = frozenset({"_segment_reduce", "nn.functional.embedding", "nn.functional.embedding_bag"})
"""Ops with samples whose offsets or indices fit torch's own sizes only; with others they read past the end."""


@dataclass
class Outcome:
    """The result of testing one op under one system."""

    runs: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    sharded: bool = False

    @property
    def verdict(self) -> str:
        """Return the result in one or two words."""
        return "wrong" if self.wrong else "refused" if self.refused else "run" if self.runs else "no samples"


@dataclass(frozen=True)
class Sample:
    """A call of an op as a function of its tensors alone."""

    function: Callable[..., list[torch.Tensor]]
    inputs: list[torch.Tensor]


def samples_of(info: Any, most: int, sizes: Mapping[str, int]) -> Iterator[Sample]:
    """Yield up to `most` samples of an op, made with the given values of torch's size constants."""
    try:
        samples = _drawn(info, most, sizes)
    except (RuntimeError, IndexError):
        # Some samples work with torch's own sizes only.
        samples = _drawn(info, most, ODD_SIZES)
    for sample in samples:
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        tensors = [each.contiguous() if each.layout is torch.strided else each for each in tensors]

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


def run_ours(info: Any, most: int, drawn: random.Random) -> Outcome:
    """Run an op's samples, with even and with odd sizes, under random signatures."""
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
            outcome.refused.append(f"{type(error).__name__}: {error}".splitlines()[0][:160])
    return outcome


def sharded(imported: ImportedFunction, mesh: Mesh, drawn: random.Random, outcome: Outcome) -> ModuleOp:
    """Return the module with a random signature for every op; four in five split a tensor if any signature can."""
    module = imported.module.clone()
    module.body.block.insert_ops_before([MeshOp(mesh)], find_function(module))
    for op in module.walk():
        if isinstance(op, ComputeOp):
            signatures = [sig for sig in spread_signatures(op.rule(), mesh, uneven=True) if _is_legal(op, sig)]
            splitting = [s for s in signatures if not all(each.is_replicated for each in (*s.operands, *s.results))]
            outcome.sharded |= bool(splitting)
            chosen = drawn.choice(splitting if splitting and drawn.random() < 0.8 else signatures)
            op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, chosen)
    return module


def _is_legal(op: ComputeOp, signature: Signature) -> bool:
    """Return whether no boolean operand is a partial sum."""
    pairs = zip(op.args, signature.operands, strict=True)
    return not any(sharding.partial and dtype_of(value) == "bool" for value, sharding in pairs)


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
            outcome.refused.append(f"{type(error).__name__}: {error}".splitlines()[0][:160])
    outcome.sharded = runner.sharded
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


def main() -> None:
    """Test both systems, publish the counts, and print each op that is not `run`."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--ops", default="", help="regular expression that names of ops match")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth op from op I, for N parallel runs")
    parser.add_argument("--no-dtensor", dest="dtensor", action="store_false")
    options = parsed(parser, samples=1, ops="functional.relu$")
    quiet()
    floats = (info for info in op_db if torch.float32 in info.supported_dtypes("cpu"))
    part, parts = map(int, options.part.split("/"))
    infos = [info for info in floats if re.search(options.ops, info.name)][part::parts]
    systems: dict[str, Callable[..., Outcome]] = {"shardwright": run_ours}
    if options.dtensor:
        from _dtensor_ops import DTensorRunner

        systems["DTensor"] = partial(run_dtensor, DTensorRunner())
    outcomes: dict[str, dict[str, Outcome]] = {system: {} for system in systems}
    seconds: dict[str, float] = defaultdict(float)
    for number, info in enumerate(infos):
        name = f"{info.name}.{info.variant_test_name}".rstrip(".")
        for system, run in systems.items():
            start = perf_counter()
            try:
                # A kernel may kill the process.
                outcome = run_apart(partial(run, info, options.samples, random.Random(number)), 60)
            except DiedError as error:
                outcome = Outcome(refused=[str(error)])
            outcomes[system][name] = outcome
            seconds[system] += perf_counter() - start
        if outcomes["shardwright"][name].verdict != "run":
            print(name, outcomes["shardwright"][name], flush=True)
    rows = [row_of(system, own, seconds[system]) for system, own in outcomes.items()]
    publish("opinfo" if parts == 1 else f"opinfo-{part}-of-{parts}", rows)


def row_of(system: str, outcomes: Mapping[str, Outcome], seconds: float) -> dict[str, Any]:
    counts = Counter(outcome.verdict for outcome in outcomes.values())
    row: dict[str, Any] = {"system": system, "ops": len(outcomes)}
    row |= {verdict: counts[verdict] for verdict in ("run", "wrong", "refused", "no samples")}
    row |= {"run and sharded": sum(each.sharded and each.verdict == "run" for each in outcomes.values())}
    row |= {"samples run": sum(each.runs for each in outcomes.values()), "s": round(seconds)}
    return row | {"not run": {n: (o.wrong or o.refused)[0] for n, o in outcomes.items() if o.wrong or o.refused}}


if __name__ == "__main__":
    main()
