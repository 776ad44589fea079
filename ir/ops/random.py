"""
Random tensors that are functions of a seed, a stream and the place of each element in the whole tensor.

Import puts them in the place of torch's random ops. Every part of the result can be had without the others, so they
are split as any op that works element by element.
"""

from __future__ import annotations

from collections.abc import Iterator

from .common import rows
from .spec import OpSpec

_DRAWN, _PASSES = "130*each", 10.0
"""Operations of a number, and how often memory is gone over: bits are mixed by ops on whole tensors."""

_LIKE = {"like": ""}

_PLACE = {"start": "result0.start", "whole": "result0.whole"}


def random_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    placed = {"size": "result0", **_PLACE}
    yield from rows("random_dropout", "input seed", flops=_DRAWN, passes=_PASSES, localize=_PLACE, results=2)
    yield from rows("random_bernoulli", "p like seed", flops=_DRAWN, reads=_LIKE, passes=_PASSES, localize=placed)
    yield from rows(
        "random_uniform random_integers", "like seed", flops=_DRAWN, reads=_LIKE, passes=_PASSES, localize=placed
    )
    yield from rows(
        "random_normal random_exponential",
        "like seed",
        flops="330*each",
        reads=_LIKE,
        passes=2 * _PASSES,
        localize=placed,
    )
    yield from rows("native_dropout_backward", "grad_output mask", linear="grad_output", flops="20*each")
