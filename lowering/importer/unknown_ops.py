"""Find rules for ops that the table lacks, and report them to the user."""

from __future__ import annotations

import logging

from torch.fx import Node
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute

from ...dialects.aten import INFERRED, RULE, OpaqueOp
from ...dialects.compute import shape_of
from ...dialects.sharding_attrs import RuleAttr
from ...ir.ops.registered import Ranks, registered_rules
from ...ir.rules import Notation
from ..capture.captured import ORIGIN, CaptureError, Origin
from ..probe.apart import DiedError
from ..probe.cache import CACHE

log = logging.getLogger("shardwright")


class UnknownOps:
    """
    The sharding rules for uses of ops that the op table lacks: registered rules, else inferred rules.

    Args:
        probe: whether to infer rules.
    """

    def __init__(self, probe: bool) -> None:
        self._probe = probe
        self._replicated: set[str] = set()
        self._inferred: dict[str, str] = {}
        self._found: dict[tuple[object, ...], str | None] = {}

    def attributes_of(self, op: OpaqueOp, node: Node) -> dict[str, Attribute]:
        """Return the attributes with the rule of `op`, the import of `node`, or no attributes if it runs replicated."""
        if known := registered_rules(op.overload):
            return {RULE: RuleAttr(_fitting(op, known, node.meta[ORIGIN]).text)}
        if (text := self._inferred_rule(op)) is None:
            self._replicated.add(op.overload)
            return {}
        self._inferred.setdefault(op.overload, text)
        return {RULE: RuleAttr(text), INFERRED: UnitAttr()}

    def warn(self) -> None:
        """Warn once about all ops that run replicated, and once about all inferred rules."""
        if self._replicated:
            names = ", ".join(sorted(self._replicated))
            log.warning("no sharding rule for %s: they run replicated on every device", names)
        if self._inferred:
            CACHE.save()
            rules = "; ".join(f"{name} {text}" for name, text in sorted(self._inferred.items()))
            log.warning("sharding rules inferred by probing, which register_rule replaces: %s", rules)

    def _inferred_rule(self, op: OpaqueOp) -> str | None:
        """Return the rule that probing infers for this use, or None if it infers none or is off."""
        if not self._probe:
            return None
        key = op.use_key()
        if key not in self._found:
            shapes = ([shape_of(value) for value in values] for values in (op.args, op.outs))
            try:
                rule = CACHE.rule(op)
            except DiedError as error:
                log.warning("%s could not be probed for a sharding rule: %s; register one for it", op.overload, error)
                rule = None
            self._found[key] = rule.notation(*shapes) if rule else None
        return self._found[key]


def _fitting(op: OpaqueOp, known: dict[Ranks, Notation], origin: Origin) -> Notation:
    """Return the registered rule for this use; raise CaptureError if no rule fits the shapes."""
    operands, results = ([shape_of(value) for value in values] for values in (op.args, op.outs))
    ranks = tuple(map(len, operands)), tuple(map(len, results))
    where = f"{origin.file}:{origin.line} (layer '{origin.layer}'): {op.overload}"
    if (notation := known.get(ranks)) is None:
        rules = ", ".join(f"'{candidate.text}'" for candidate in known.values())
        uses = f"{_shapes(operands)} -> {_shapes(results)}"
        raise CaptureError(
            f"{where} is called with {uses}, but only {rules} are registered; register a rule for it too"
        )
    try:
        notation.bind(operands, results)
    except ValueError as error:
        raise CaptureError(f"{where} does not fit the registered rule: {error}") from error
    return notation


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "nothing"
