"""A rule that was inferred on small shapes, and its generalization to other shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.sharding import Reduction

Shape = tuple[int, ...]
Place = tuple[int, int]
"""The index of an operand or result, and the index of its dim."""


@dataclass(frozen=True)
class ProbedFactor:
    """
    Dims that are split together.

    Args:
        reduction: reduction of the results without such a dim, if any.
        additive: operands that must be added once if this factor is split.
    """

    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    reduction: Reduction | None = None
    additive: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProbedRule:
    """Factors, and sets of operands that pass partial values through (`linear`)."""

    factors: tuple[ProbedFactor, ...]
    linear: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.factors or self.linear)

    def notation(self, operands: Sequence[Shape], results: Sequence[Shape]) -> str | None:
        """
        Return the rule in factor notation for these shapes, or None if it does not fit them.

        A dim that is larger than its factor is a product with a further factor; a dim without a factor is never split.
        """
        sizes: dict[str, int] = {}
        whole: list[str] = []
        texts: list[str] = []
        for side, shapes in (("operands", operands), ("results", results)):
            values: list[str] = []
            for index, shape in enumerate(shapes):
                dims = [self._dim(side, (index, d), size, operands, sizes, whole) for d, size in enumerate(shape)]
                if None in dims:
                    return None
                values.append(f"[{', '.join(filter(None, dims))}]")
            texts.append(f"({', '.join(values)})")
        additive = sorted({str(operand) for factor in self.factors for operand in factor.additive})
        sets = {
            "reduction": [f"{f.reduction} f{i}" for i, f in enumerate(self.factors) if f.reduction is not None],
            "replicated": whole,
            "linear": ["+".join(map(str, group)) for group in self.linear],
            "additive": additive,
        }
        extents = f" {{{', '.join(f'{name}={size}' for name, size in sizes.items())}}}" if sizes else ""
        rest = "".join(f" {name}={{{', '.join(items)}}}" for name, items in sets.items() if items)
        return f"{texts[0]} -> {texts[1]}{extents}{rest}".replace("sum f", "f")

    def _dim(
        self, side: str, place: Place, size: int, operands: Sequence[Shape], sizes: dict[str, int], whole: list[str]
    ) -> str | None:
        for number, factor in enumerate(self.factors):
            if place in getattr(factor, side):
                extent = math.gcd(*(operands[i][d] for i, d in factor.operands))
                if extent == size:
                    return f"f{number}"
                if not extent or size % extent:
                    return None
                inner = f"g{len(sizes)}"
                sizes |= {f"f{number}": extent, inner: size // extent}
                return f"f{number}*{inner}"
        if size == 1:
            return "1"
        whole.append(f"w{len(whole)}")
        return whole[-1]

    def as_json(self) -> dict[str, object]:
        """Return the rule as plain data."""
        factors = ((f.operands, f.results, f.reduction, f.additive) for f in self.factors)
        # The round trip through JSON makes rules comparable with stored rules.
        return json.loads(json.dumps({"factors": list(factors), "linear": self.linear}))

    @staticmethod
    def of_json(data: Any) -> ProbedRule:
        """Return the rule from `as_json`; raise ValueError, TypeError or LookupError for other data."""
        factors = (
            ProbedFactor(_places(operands), _places(results), reduction and Reduction(reduction), tuple(additive))
            for operands, results, reduction, additive in data["factors"]
        )
        return ProbedRule(tuple(factors), tuple(map(tuple, data["linear"])))


def _places(data: Any) -> tuple[Place, ...]:
    return tuple((int(value), int(dim)) for value, dim in data)
