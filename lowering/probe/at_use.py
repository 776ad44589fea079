"""
Check inferred rules at the sizes and splits of a plan.

Probing runs an op on small operands, so a constant of its body (a window of 16 columns, for example) may be larger than
any size that was tried. A finished plan has the full shapes and the signature of every use: this module runs the op on
one device and on the shards of the signature, and compares the numbers. A choice that computes other numbers is removed
from the rule, so that the next plan avoids it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from ...dialects.aten import INFERRED, RULE, OpaqueOp
from ...dialects.compute import SIGNATURE, dtype_of, shape_of
from ...dialects.mesh_ops import MeshOp, find_mesh
from ...dialects.sharding_attrs import RuleAttr, SignatureAttr
from ...ir.mesh import Axis, Mesh
from ...ir.rules import parse_rule
from ...ir.signatures import Linear, Signature, Split, choices_of, signature
from ..calls.dtypes import torch_dtype
from ..interpreter.errors import InterpreterError
from ..interpreter.interpreter import find_function, interpret
from .apart import DiedError, run_apart
from .one_op import Spec, call_on, draw, find_domain, one_op_module, run, spec_of
from .soundness import first_difference

log = logging.getLogger("shardwright")

MOST_ELEMENTS = 1 << 27
"""The most elements, in operands and results together, of a use to check."""

_FEW_ELEMENTS = 1 << 24
"""The most elements of a use that runs in double precision, where rounding does not hide differences."""

_MOST_SECONDS = 120.0

RuleOfOp = tuple[str, str]
"""The name of an op and the text of its rule."""

_KNOWN: dict[tuple[object, ...], Refutation | None] = {}
"""The refutation of each use that was checked in this process, or None if its rule holds."""


@dataclass(frozen=True)
class Refutation:
    """Choices of a rule that compute wrong numbers, separately or together, and the first difference found."""

    problem: str
    choices: frozenset[Split | Linear]

    def narrowed(self, text: str) -> str:
        """Return a rule's text without these choices."""
        factors = {choice.factor for choice in self.choices if isinstance(choice, Split)}
        linear = {choice.operands for choice in self.choices if isinstance(choice, Linear)}
        return parse_rule(text).without(factors, linear)


def refuted_rules(module: ModuleOp) -> dict[RuleOfOp, Refutation]:
    """Return the inferred rules that do not hold for a signature in a plan, with one refutation of each."""
    refuted: dict[RuleOfOp, Refutation] = {}
    for op in inferred_uses(module):
        chosen = op.attributes.get(SIGNATURE)
        if not isinstance(chosen, SignatureAttr):
            continue
        used = chosen.signature
        # Keep only the axes that the signature uses, with devices on temporal axes.
        mesh = find_mesh(op, chosen.data.mesh)
        shardings = (*used.operands, *used.results)
        axes = {axis for each in shardings for axis in (*each.split_axes, *each.partial_axes)}
        mesh = Mesh(tuple(Axis(a.name, a.size) for a in mesh.axes if a.name in axes), mesh.name)
        if mesh.device_count == 1:
            continue
        key = (op.use_key(), used, mesh)
        if key not in _KNOWN:
            _KNOWN[key] = _refutation(op, used, mesh)
        if (refutation := _KNOWN[key]) is not None:
            refuted.setdefault(_rule_of(op), refutation)
    return refuted


def inferred_uses(module: ModuleOp) -> list[OpaqueOp]:
    """Return the ops of a module that use an inferred rule."""
    return [op for op in module.walk() if isinstance(op, OpaqueOp) and INFERRED in op.attributes]


def narrow_rules(module: ModuleOp, refuted: Mapping[RuleOfOp, Refutation]) -> None:
    """Remove the refuted choices from the rules in a module that is not planned yet, with a warning for each rule."""
    for (target, text), refutation in refuted.items():
        uses = [op for op in inferred_uses(module) if op.overload == target]
        same = [op for op in uses if _rule_of(op) == (target, text)]
        left = refutation.narrowed(text)
        for op in same:
            op.attributes[RULE] = RuleAttr(left)
        for op in () if same else uses:
            # A pass rewrote the rule, so its factors have other names in this module.
            del op.attributes[RULE], op.attributes[INFERRED]
        log.warning("the inferred sharding rule of %s does not hold where the plan uses it (%s): %s is used in its"
                    " place; register_rule gives the op a rule", target, refutation.problem, left)  # fmt: skip


def _rule_of(op: OpaqueOp) -> RuleOfOp:
    rule = op.attributes[RULE]
    assert isinstance(rule, RuleAttr)
    return op.overload, rule.data


def _refutation(op: OpaqueOp, found: Signature, mesh: Mesh) -> Refutation | None:
    """Compare one device with the shards of a signature; a use that cannot be compared counts as refuted."""
    specs = [(shape_of(value), torch_dtype(dtype_of(value))) for value in op.args]
    elements = sum(math.prod(shape_of(value)) for value in (*op.args, *op.outs))
    rule = op.rule()
    chosen, offsets = choices_of(rule, found, mesh)
    every = frozenset(choice for choice in chosen if choice is not None)
    if elements > MOST_ELEMENTS:
        return Refutation(f"its {elements:,} elements are too many to check", every)
    doubled = [(shape, torch.float64 if dtype.is_floating_point else dtype) for shape, dtype in specs]
    tries = (doubled, specs) if elements <= _FEW_ELEMENTS else (specs,)

    def compare() -> Refutation | None:
        used = next(filter(None, (_UseRun.of(op, each) for each in tries)), None)
        if used is None:
            return Refutation("it takes no random operands of these sizes", every)
        if (problem := used.difference(found, mesh)) is None:
            return None
        alone = {each: signature(rule, mesh, [c if c == each else None for c in chosen], offsets) for each in every}
        wrong = frozenset(c for c, each in alone.items() if each is not None and used.difference(each, mesh))
        return Refutation(problem, wrong or every)

    try:
        return run_apart(compare, _MOST_SECONDS)
    except DiedError as error:
        return Refutation(f"its check ended: {error}", every)


@dataclass(frozen=True)
class _UseRun:
    """A use of an op on random operands, with its results on one device."""

    op: OpaqueOp
    inputs: list[torch.Tensor]
    results: list[torch.Tensor]

    @staticmethod
    def of(op: OpaqueOp, specs: Sequence[Spec]) -> _UseRun | None:
        """Run the op on operands of these shapes and dtypes; return None if it refuses every draw."""
        call = call_on(op.overload, specs, _arguments(op))
        if (domain := find_domain(call, specs)) is None:
            return None
        inputs = draw(specs, domain, 1)
        results = run(call, inputs)
        return None if results is None else _UseRun(op, inputs, results)

    def difference(self, found: Signature, mesh: Mesh) -> str | None:
        """Return the first difference between these results and the results of the parts of a signature."""
        rule = {RULE: self.op.attributes[RULE], SIGNATURE: SignatureAttr.of(mesh.name, found)}
        specs, outs = (list(map(spec_of, values)) for values in (self.inputs, self.results))
        module = one_op_module(self.op.overload, specs, outs, _arguments(self.op) | rule)
        module.body.block.insert_ops_before([MeshOp(mesh)], find_function(module))
        try:
            parts = interpret(module, self.inputs)
        except (InterpreterError, RuntimeError, IndexError) as error:
            return f"a part fails: {str(error).splitlines()[0]}"
        return next(_differences(parts, self.results, mesh), None)


def _arguments(op: OpaqueOp) -> dict[str, Attribute]:
    return {name: value for name, value in op.attributes.items() if "." not in name}


def _differences(parts: Sequence[torch.Tensor], results: Sequence[torch.Tensor], mesh: Mesh) -> Iterator[str]:
    for index, (one, other) in enumerate(zip(parts, results, strict=True)):
        if (place := first_difference(one, other)) is not None:
            yield f"result {index} of shape {list(other.shape)} differs at {list(place)} on mesh {mesh}"
