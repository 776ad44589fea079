"""
Random tensors that are functions of a seed, a stream and the place of each element in the full tensor.

Import replaces torch's random ops by these. Each part of a result can be computed without the other parts, so they are
split like any elementwise op.
"""

from __future__ import annotations

from collections.abc import Iterator

from .common import rows
from .spec import OpSpec

_DRAWN, _PASSES = "130*each", 10.0
"""Operations per number, and passes over memory, since ops on all elements mix the bits."""

_LIKE = {"like": ""}

_PLACE = {"start": "result0.start", "whole": "result0.whole"}


_DRAW = "int stream, bool independent=False"

_MADE = f"Tensor? like=None, {_DRAW}, ScalarType dtype, SymInt[] size"


def random_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    placed = {"size": "result0", **_PLACE}
    yield from rows(
        "random_dropout",
        "input seed",
        flops=_DRAWN,
        passes=_PASSES,
        localize=_PLACE,
        results=2,
        arguments=f"float p, {_DRAW}",
    )
    for name, operands, drawn, flops, passes in (
        ("random_bernoulli", "p like seed", "", _DRAWN, _PASSES),
        ("random_uniform", "like seed", "float low, float high, ", _DRAWN, _PASSES),
        ("random_integers", "like seed", "int low, int high, ", _DRAWN, _PASSES),
        ("random_normal", "like seed", "float mean, float std, ", "330*each", 2 * _PASSES),
        ("random_exponential", "like seed", "float lambd, ", "330*each", 2 * _PASSES),
    ):
        yield from rows(
            name,
            operands,
            flops=flops,
            reads=_LIKE,
            passes=passes,
            localize=placed,
            arguments=f"{drawn}{_MADE}",
        )
    yield from rows("native_dropout_backward", "grad_output mask", linear="grad_output", flops="20*each")
