"""
Check a sharding rule by running every signature that it yields on the simulated ranks of several meshes.

A rule is a theorem about an op, and the check searches for a counterexample: for each choice per axis, with even
splits, uneven splits and an empty shard, the op must give the results of one device. The check compares values, shapes
and dtypes of the full results, and the shapes of the shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp

from ...dialects.compute import SIGNATURE, ComputeOp
from ...dialects.mesh_ops import MeshOp
from ...dialects.sharding_attrs import SignatureAttr
from ...ir.mesh import Mesh
from ...ir.rules import Rule
from ...ir.sharding import Offsets, local_slices
from ...ir.signatures import Signature, Split, choices, explain_mismatch, signature
from ..interpreter.errors import InterpreterError
from ..interpreter.interpreter import find_function, interpret

MESHES = (Mesh.of(x=2), Mesh.of(x=3), Mesh.of(x=4), Mesh.of(x=2, y=2))

_TOLERANCE = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 1e-5, torch.complex64: 1e-5}
_COARSE = 1e-2
"""The tolerance for half precision."""

_REFUSALS = (InterpreterError, RuntimeError, IndexError)
"""The errors that a wrong rule may cause, such as shards of inconsistent shapes."""


@dataclass(frozen=True)
class Counterexample:
    """A use of an op that refutes its rule: a signature, or only the shapes if `signature` is None."""

    op: str
    problem: str
    mesh: Mesh | None = None
    signature: Signature | None = None

    def __str__(self) -> str:
        where = f"\n  on mesh {self.mesh}\n  with {self.signature}" if self.mesh else ""
        return f"{self.op}{where}\n  {self.problem}"


@dataclass(frozen=True)
class SoundnessVerdict:
    """The number of signatures that were run, and the first counterexample."""

    checked: int
    counterexample: Counterexample | None = None

    @property
    def holds(self) -> bool:
        """Whether the rule has no counterexample."""
        return self.counterexample is None


def check_op(
    module: ModuleOp,
    inputs: Sequence[torch.Tensor],
    *,
    meshes: Sequence[Mesh] = MESHES,
    thorough: bool = True,
    defined: bool = True,
    known: Rule | None = None,
) -> SoundnessVerdict:
    """
    Check the rule of the only op in a module of one function.

    Args:
        inputs: one tensor per argument of the function.
        thorough: whether to try uneven and empty shards on every mesh, instead of the mesh of three devices only.
        defined: whether the op's results have values; the results of `empty` have only a shape and a dtype.
        known: another rule of the op, whose signatures are skipped.

    Raises:
        InterpreterError: the op cannot be run on one device.
    """
    expected = interpret(module, inputs)
    checked = 0
    for mesh in meshes:
        placed = module.clone()
        placed.body.block.insert_ops_before([MeshOp(mesh)], find_function(placed))
        op = next(op for op in placed.walk() if isinstance(op, ComputeOp))
        uneven = thorough or mesh.device_count == 3
        skipped = set(spread_signatures(known, mesh, uneven=uneven)) if known is not None else ()
        for candidate in dict.fromkeys(spread_signatures(op.rule(), mesh, uneven=uneven)):
            if candidate in skipped:
                continue
            problem = _problem(placed, op, inputs, expected, mesh, candidate, defined)
            checked += 1
            if problem is not None:
                return SoundnessVerdict(checked, Counterexample(op_text(op), problem, mesh, candidate))
    return SoundnessVerdict(checked)


def spread_signatures(rule: Rule, mesh: Mesh, *, uneven: bool) -> Iterator[Signature]:
    """Yield the signatures of a rule with even splits and, if `uneven`, also with rising shares and an empty shard."""
    for chosen in itertools.product(choices(rule), repeat=len(mesh.axes)):
        parts: dict[str, int] = {}
        for axis, choice in zip(mesh.axes, chosen, strict=True):
            if isinstance(choice, Split):
                parts[choice.factor] = parts.get(choice.factor, 1) * axis.size
        for boundaries in (None, *((_rising, _with_a_hole) if uneven and parts else ())):
            offsets = {f: boundaries(rule.sizes[f], count) for f, count in parts.items()} if boundaries else None
            if (found := signature(rule, mesh, chosen, offsets)) is not None:
                yield found


def _rising(size: int, parts: int) -> Offsets:
    """Return the boundaries of shares in the ratio 1 : 2 : 3 : ...; small shares may be empty."""
    return tuple(size * i * (i + 1) // (parts * (parts + 1)) for i in range(parts + 1))


def _with_a_hole(size: int, parts: int) -> Offsets:
    """Return the boundaries of even shares with an empty second share."""
    marks = [i * size // (parts - 1) for i in range(parts)] if parts > 1 else [0, size]
    return (*marks[:2], *marks[1:]) if parts > 1 else (0, size)


def _problem(
    module: ModuleOp,
    op: ComputeOp,
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    mesh: Mesh,
    found: Signature,
    defined: bool,
) -> str | None:
    if (mismatch := explain_mismatch(op.rule(), found, mesh)) is not None:
        return f"not a signature of its own rule: {mismatch}"
    op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, found)
    try:
        return _difference(interpret(module, inputs, check_replicas=defined), expected, mesh, found, defined)
    except _REFUSALS as error:
        try:
            # The index of a wrong value is more informative than the error about differing copies.
            return _difference(interpret(module, inputs), expected, mesh, found, defined) or str(error)
        except _REFUSALS:
            return str(error)


def _difference(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], mesh: Mesh, found: Signature, defined: bool
) -> str | None:
    for index, (one, other) in enumerate(zip(results, expected, strict=True)):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"result {index} is {one.dtype} of {list(one.shape)}, expected {other.dtype} of {list(other.shape)}"
        if defined and (place := first_difference(one, other)) is not None:
            parts = (local_slices(one.shape, found.results[index], mesh, rank) for rank in range(mesh.device_count))
            rank = next(rank for rank, part in enumerate(parts) if _is_in(place, part))
            where = f"result {index} at {list(place)}, held by rank {rank}"
            return f"{where}: expected {other[place].item():.6g}, found {one[place].item():.6g}"
    return None


def _is_in(place: Sequence[int], part: Sequence[slice]) -> bool:
    return all(span.start <= at < span.stop for span, at in zip(part, place, strict=True))


def first_difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[int, ...] | None:
    """
    Return the index of the first element that differs by more than rounding, or None.

    Rounding is relative to the largest finite element, because sums of numbers of either sign cancel.
    """
    if found.dtype == torch.bool or not (found.is_floating_point() or found.is_complex()):
        wrong = found != expected
    else:
        tolerance = _TOLERANCE.get(found.dtype, _COARSE)
        size = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 0.0
        wrong = ~torch.isclose(found, expected, tolerance, tolerance * max(1.0, size), equal_nan=True)
    places = wrong.nonzero()
    return tuple(places[0].tolist()) if len(places) else None


def op_text(op: ComputeOp) -> str:
    """Return the op as text, without its signature."""
    bare = op.clone()
    bare.attributes.pop(SIGNATURE, None)
    return str(bare)
