"""
The op table: one row per ATen overload. A new op needs only a row in this table.

Names are ATen's without `.default`; `attention` and `attention_backward` are the fused attention ops that
import normalises every backend's variants to; `decompose-cross-entropy` produces `sum_exp` and
`cross_entropy_backward`; import replaces random ops by `random_*`; `train.*` are the fused updates of one parameter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..rules import Rule, replicated_rule
from .attention import attention_rows
from .common import named
from .contractions import contractions_rows
from .elementwise import elementwise_rows
from .factories import factories_rows
from .indexing import indexing_rows
from .linalg import linalg_rows
from .losses import losses_rows
from .normalisation import normalisation_rows
from .parts import parts_rows
from .random import random_rows
from .reductions import reductions_rows
from .resampling import resampling_rows
from .spec import OpInstance, OpSpec
from .views import views_rows
from .windows import windows_rows

_FAMILIES = {
    "elementwise": elementwise_rows,
    "reductions": reductions_rows,
    "factories": factories_rows,
    "views": views_rows,
    "parts": parts_rows,
    "indexing": indexing_rows,
    "contractions": contractions_rows,
    "attention": attention_rows,
    "normalisation": normalisation_rows,
    "windows": windows_rows,
    "resampling": resampling_rows,
    "linalg": linalg_rows,
    "losses": losses_rows,
    "random": random_rows,
}
"""The rows of each family; the name of a family is the cost class of its ops."""


@lru_cache(maxsize=1)
def op_table() -> dict[str, OpSpec]:
    """Return all rows by name."""
    return {spec.name: replace(spec, family=name) for name, rows in _FAMILIES.items() for spec in rows()}


def update_rule(op: OpInstance) -> Rule:
    """Return the rule of a fused update: every tensor has the parameter's sharding; scalars are replicated."""
    value, sizes = named(op.results[0])
    operands = tuple(value if shape == op.results[0] else () for shape in op.operands)
    results = tuple(value if shape == op.results[0] else () for shape in op.results)
    return Rule(operands, results, sizes)


def rule_of(op: OpInstance) -> Rule:
    """Return the sharding rule of `op`; an overload without a row is replicated."""
    spec = op_table().get(op.name)
    return spec.bind(op) if spec is not None else replicated_rule(op.operands, op.results)
