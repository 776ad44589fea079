"""`shardwright theory`."""

from __future__ import annotations

import re
from argparse import Namespace
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import cast

from ..ir.mesh import Mesh
from ..ir.ops.spec import OpInstance, OpSpec
from ..ir.ops.table import op_table
from ..ir.plain import Plain, closest
from ..ir.rules import Rule, parse_rule
from ..passes.search.algorithms.theory import Triple, collective_triples, op_triples
from .cli_arguments import mesh_of, tool_error

COLLECTIVES = "collectives"

_PREFIX = re.compile(r"aten(\.|::)")
_SHAPE = re.compile(r"scalar|\d+(x\d+)*")
_DIM = 16
"""The least size of dims in generated operands, on one device."""

Shape = tuple[int, ...]


def theory_command(options: Namespace) -> int:
    """Print the Hoare triples of an op, or of the collectives."""
    mesh = mesh_of(options.mesh)
    if options.op == COLLECTIVES:
        shown, every = (tuple(collective_triples(mesh, 2, beyond)) for beyond in (options.all, True))
    else:
        spec = _find_op(options.op)
        arguments: dict[str, Plain] = {}
        for item in options.arguments:
            name, equals, text = item.partition("=")
            if not equals:
                raise tool_error(f"--argument {item} is not of the form name=value, such as dim=[0]")
            try:
                arguments[name] = literal_eval(text)
            except (ValueError, SyntaxError):
                arguments[name] = text
        rule = _rule(spec, options.shapes, mesh, arguments)
        shown, every = (op_triples(spec.name, rule, mesh, beyond) for beyond in (options.all, True))
    _print(shown, len(every))
    return 0


def _print(shown: Sequence[Triple], count: int) -> None:
    for triple in shown:
        print(triple)
    if left := count - len(shown):
        print(
            f"{left} more {'is' if left == 1 else 'are'} not in the paper: --all prints {'it' if left == 1 else 'them'}"
        )


def _find_op(name: str) -> OpSpec:
    """Return the row of an op; a DiagnosticError lists the nearest names if the table has no such op."""
    table, plain = op_table(), _PREFIX.sub("", name, count=1)
    spelled = "mm" if plain == "MatMul" else plain.removesuffix(".default")
    if (spec := table.get(spelled)) is not None:
        return spec
    base = spelled.split(".", maxsplit=1)[0]
    near = [other for other in table if other.split(".", maxsplit=1)[0] == base]
    similar = closest(spelled, [*table, "MatMul", COLLECTIVES], most=3, cutoff=0.5)
    near += [other for other in similar if other not in near]
    hint = f"the nearest names are {', '.join(near[:5])}" if near else f"or '{COLLECTIVES}' for the collectives"
    raise tool_error(
        f"the op table has no '{name}'; expected the name of an ATen overload, such as mm or sum.dim_IntList", hint
    )


def _rule(spec: OpSpec, shapes: str | None, mesh: Mesh, arguments: Mapping[str, Plain]) -> Rule:
    """Return the sharding rule of an op on operands with these shapes, or on generated operands."""
    if shapes is None:
        operands, results = _made_up(spec, mesh), None
    else:
        before, arrow, after = shapes.partition("->")
        operands, results = _shapes(before), _shapes(after) if arrow else None
    # A list of tensors takes all additional names.
    extra = len(operands) - len(spec.operands)
    named = ((name.lstrip("*"), 1 + max(extra, 0) if name.startswith("*") else 1) for name in spec.operands)
    names = tuple(name for name, times in named for _ in range(times))[: len(operands)]
    hint = f"give the shapes that it takes, as shardwright theory {spec.name} '6x4, 4x5', and its --argument name=value"
    try:
        if results is None:
            results = _results_of_notation(spec, operands) or _results(spec, names, operands, arguments)
        return spec.bind(OpInstance(spec.name, tuple(operands), tuple(results), names, arguments))
    # Torch and the rules raise these for shapes and arguments that the op does not accept.
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        text = str(error).strip().split("\n", maxsplit=1)[0]
        listed = ", ".join("x".join(map(str, shape)) or "scalar" for shape in operands) or "none"
        raise tool_error(f"'{spec.name}' does not take operands of shapes {listed}: {text}", hint) from error


def _made_up(spec: OpSpec, mesh: Mesh) -> list[Shape]:
    """Return operand shapes that can be split over the mesh in every dim; matrices if the rule is a function."""
    size = _DIM * mesh.device_count
    if isinstance(spec.rule, str):
        notation = parse_rule(spec.rule)
        factors = dict.fromkeys(factor for value in notation.operands for dim in value for factor in dim)
        sizes = {factor: size + 4 * number for number, factor in enumerate(factors)}
        values = [[[sizes[factor] for factor in dim] for dim in value] for value in notation.operands]
        return [tuple(dim[0] if dim else 1 for dim in value) for value in values]
    return [(size, size) for _ in spec.operands]


def _shapes(text: str) -> list[Shape]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    for item in items:
        if _SHAPE.fullmatch(item) is None:
            raise tool_error(
                f"'{item}' is not a shape; expected shapes such as '6x4, 4x5', or with results, '6x4, 4x5 -> 6x5'"
            )
    return [() if item == "scalar" else tuple(map(int, item.split("x"))) for item in items]


def _results_of_notation(spec: OpSpec, operands: Sequence[Shape]) -> list[Shape] | None:
    """Return the result shapes if the rule is a notation, or None if it is a function of the shapes."""
    if not isinstance(spec.rule, str):
        return None
    notation = parse_rule(spec.rule)
    sizes = replace(notation, results=()).bind(operands, ()).sizes
    return [tuple(prod(sizes[factor] for factor in dim) for dim in value) for value in notation.results]


def _results(
    spec: OpSpec, names: Sequence[str], operands: Sequence[Shape], arguments: Mapping[str, Plain]
) -> list[Shape]:
    """Return the result shapes of an op according to torch."""
    import torch

    base, _, overload = spec.name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None or not hasattr(packet, overload or "default"):
        raise ValueError("torch has no such op; also give the shapes of its results, such as '6x4, 4x5 -> 6x5'")
    keywords: dict[str, object] = dict(arguments)
    for name in dict.fromkeys(names):
        tensors = [torch.empty(s, device="meta") for n, s in zip(names, operands, strict=True) if n == name]
        keywords[name] = tensors if f"*{name}" in spec.operands else tensors[0]
    results = getattr(packet, overload or "default")(**keywords)
    listed = cast("Sequence[object]", results if isinstance(results, tuple | list) else (results,))
    return [tuple(tensor.shape) for tensor in listed if isinstance(tensor, torch.Tensor)]
