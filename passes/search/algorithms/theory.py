"""
HAP's theory of a program: Hoare triples `{precondition} instruction {postcondition}` over properties of tensors.

A property `e | I` says that the devices hold a distributed tensor which instruction I turns into the tensor e (4.2):

    e | Identity         Every device has e.
    e | All-Gather(d)    Every device has its part of e along dim d.
    e | All-Reduce       The sum of the tensors of all devices is e. All-Reduce(max) and All-Reduce(min) are similar.

A sharding is one such property for each axis of the mesh. The signatures of an op are its triples: figure 9 and, with
Identity throughout, 4.4. The triples of collectives are the steps between shardings.

The rules of this project have two kinds of triples that the paper lacks. A linear op passes partial sums through, and a
device can slice its part from a full tensor without communication.

Source: HAP 4.2, figure 9, 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import BlockArgument, SSAValue

from ....dialects import train
from ....dialects.compute import ComputeOp
from ....dialects.placed import argument_attribute
from ....ir.collectives import CollectiveKind, Step, steps_from
from ....ir.mesh import Mesh
from ....ir.rules import Rule
from ....ir.sharding import DimSharding, Reduction, Sharding
from ....ir.signatures import Signature, signatures
from ...step.step_view import value_label
from ..strategy_problem import Decision

_SPELLED = {"mm": "MatMul"}
"""The paper's names of ops, if they differ from ours."""


@dataclass(frozen=True)
class Property:
    """A property of a program: it has a tensor in some form."""

    tensor: str
    form: str

    def __str__(self) -> str:
        return f"{self.tensor} | {self.form}"


@dataclass(frozen=True)
class Triple:
    """A Hoare triple: properties before an instruction, and the properties that it establishes."""

    precondition: tuple[Property, ...]
    instruction: str
    postcondition: tuple[Property, ...]

    def __str__(self) -> str:
        before, after = (", ".join(map(str, side)) for side in (self.precondition, self.postcondition))
        return f"{{{before}}} {self.instruction} {{{after}}}"


def form_of(sharding: Sharding, axes: Sequence[str]) -> str:
    """Return a sharding in the paper's notation; on several axes, with the name of each axis that it uses."""
    by_axis = {axis: f"All-Gather({number})" for number, dim in enumerate(sharding.dims) for axis in dim.axes}
    for axis, kind in sharding.partial:
        by_axis[axis] = "All-Reduce" if kind is Reduction.SUM else f"All-Reduce({kind})"
    if len(axes) == 1:
        return by_axis.get(axes[0], "Identity")
    return "; ".join(f"{axis}: {by_axis[axis]}" for axis in axes if axis in by_axis) or "Identity"


def op_name(overload: str) -> str:
    """Return the name of an op in triples: `MatMul`, `Relu`, `Sum`."""
    plain = overload.split(".", maxsplit=1)[0]
    return _SPELLED.get(plain) or "-".join(word.capitalize() for word in plain.split("_") if word)


def op_triples(overload: str, rule: Rule, mesh: Mesh, beyond_paper: bool = False) -> tuple[Triple, ...]:
    """
    Return the triples of an op on tensors e1, e2, ...: one for each of its signatures.

    Args:
        beyond_paper: whether to include triples with partial sums in the precondition.
    """
    names = [f"e{number + 1}" for number in range(len(rule.operands) + len(rule.results))]
    operands, results = names[: len(rule.operands)], names[len(rule.operands) :]
    return tuple(
        signature_triple(op_name(overload), operands, results, signature, mesh.names)
        for signature in signatures(rule, mesh)
        if beyond_paper or not any(sharding.partial for sharding in signature.operands)
    )


def signature_triple(
    name: str, operands: Sequence[str], results: Sequence[str], signature: Signature, axes: Sequence[str]
) -> Triple:
    """Return the triple of an op with a signature."""
    return Triple(
        tuple(Property(e, form_of(s, axes)) for e, s in zip(operands, signature.operands, strict=True)),
        f"{name}({', '.join(operands)})",
        tuple(Property(e, form_of(s, axes)) for e, s in zip(results, signature.results, strict=True)),
    )


def collective_triples(mesh: Mesh, dims: int, beyond_paper: bool = False) -> Iterator[Triple]:
    """
    Yield the triples of the collectives on a tensor e.

    Args:
        dims: number of dims of e.
        beyond_paper: whether to include steps without communication.
    """
    for source in _shardings(mesh, dims):
        for step in steps_from(source, mesh):
            if beyond_paper or not step.kind.is_local:
                before = Property("e", form_of(step.source, mesh.names))
                after = Property("e", form_of(step.target, mesh.names))
                for instruction in _instructions(step):
                    yield Triple((before,), instruction, (after,))


def _shardings(mesh: Mesh, dims: int) -> Iterator[Sharding]:
    """Yield shardings that are partial over one axis, then split over one axis, then replicated."""
    whole = Sharding.replicated(dims)
    for axis in mesh.names:
        yield Sharding(whole.dims, ((axis, Reduction.SUM),))
    for axis in mesh.names:
        for dim in range(dims):
            yield Sharding(tuple(DimSharding((axis,) if at == dim else ()) for at in range(dims)))
    yield whole


def _instructions(step: Step) -> tuple[str, ...]:
    """Return the instructions for a step: two for an all-gather, which has two methods (4.4)."""
    match step.kind:
        case CollectiveKind.ALL_REDUCE:
            return ("All-Reduce(e)",)
        case CollectiveKind.REDUCE_SCATTER:
            return (f"Reduce-Scatter(e, {step.dim})",)
        case CollectiveKind.ALL_GATHER:
            return (f"All-Gather(e, {step.dim})", f"Grouped-Broadcast(e, {step.dim})")
        case CollectiveKind.ALL_TO_ALL:
            return (f"All-To-All(e, {step.dim}, {step.to_dim})",)
        case CollectiveKind.SLICE:
            return (f"Slice(e, {step.dim})",)
        case CollectiveKind.PARTIAL:
            return ("Zero-But-First(e)",)


def decision_triple(decision: Decision, state: int, axes: Sequence[str]) -> Triple:
    """Return the triple of the instruction that gives a node of a step's problem a state."""
    subject, chosen = decision.subject, decision.states[state]
    if isinstance(subject, ComputeOp):
        assert isinstance(chosen, Signature)
        operands, results = ([_name(value) for value in values] for values in (subject.args, subject.outs))
        return signature_triple(op_name(subject.overload), operands, results, chosen, axes)
    assert isinstance(chosen, Sharding)
    form, name = form_of(chosen, axes), _name(subject)
    if decision.copy:
        return Triple((), f"Working-Copy({name})", (Property(name, form),))
    dims = [str(number) for number, dim in enumerate(chosen.dims) if dim.axes]
    kind = "Placeholder" if _is_batch(subject) else "Parameter"
    return Triple((), f"{kind}-Shard({', '.join(dims)})" if dims else f"{kind}()", (Property(name, form),))


def _name(value: SSAValue) -> str:
    return value_label(value).removeprefix("%")


def _is_batch(value: SSAValue) -> bool:
    return isinstance(value, BlockArgument) and argument_attribute(value, train.BATCH) is not None
