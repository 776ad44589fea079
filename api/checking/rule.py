"""Checks of sharding rules before their use: each signature is run on samples and compared with the full op."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from xdsl.ir import Attribute

from ...dialects.aten import RULE
from ...dialects.sharding_attrs import RuleAttr
from ...ir.ops.registered import full_name, notation_of
from ...ir.rules import Notation
from ...lowering.calls.allowed_ops import vouch_for
from ...lowering.calls.calls import Call
from ...lowering.calls.local_calls import make_call
from ...lowering.probe.one_op import Domain, Spec, call_on, draw, find_domain, one_op_module, run, spec_of, the_op
from ...lowering.probe.soundness import Counterexample, SoundnessVerdict, check_op, op_text

_SIZES = (6, 5, 4, 7, 8, 9, 10, 11)
_DTYPES = (torch.float64, torch.int64, torch.bool)
_SPEC = re.compile(r"(?P<shape>scalar|\d+(x\d+)*)(:(?P<dtype>\w+))?(<(?P<high>\d+))?")


class RuleCheckError(ValueError):
    """An error that reports a rule that cannot be checked, because its op runs on no sample."""


def check_rule(
    op: str, rule: str, *, linear: Iterable[str | int] = (), additive: Iterable[int] = (), samples: Sequence[str] = ()
) -> SoundnessVerdict:
    """
    Run every signature of a rule against the op on one device, on simulated ranks.

    Args:
        op, rule, linear, additive: as in `register_rule`, which this function does not call.
        samples: operands to try, such as `6x4, 4x5` or `6x5, 6:int64<5` (float64 without a dtype; integers below 5). By
            default samples are generated: one with factors of different sizes, and one with equal sizes.

    Returns:
        The number of signatures that were run, and a counterexample if a result differs from the result on one device.

    Raises:
        ValueError: the name or the rule is malformed, or does not fit a given sample.
        RuleCheckError: the op runs on none of the generated samples.
    """
    target, notation = full_name(op), notation_of(rule, linear, additive)
    vouch_for(target)
    checked = 0
    for specs, domain, call in _given(target, samples) if samples else _made(target, notation):
        verdict = _check(target, notation, specs, domain, call)
        checked += verdict.checked
        if not verdict.holds:
            return SoundnessVerdict(checked, verdict.counterexample)
    return SoundnessVerdict(checked)


def _check(target: str, notation: Notation, specs: Sequence[Spec], domain: Domain, call: Call) -> SoundnessVerdict:
    inputs = draw(specs, domain, 1)
    results = run(call, inputs)
    assert results is not None, "the op already ran on other numbers of the same domain"
    attributes: Mapping[str, Attribute] = {RULE: RuleAttr(notation.text)}
    module = one_op_module(target, specs, list(map(spec_of, results)), attributes)
    try:
        notation.bind([shape for shape, _ in specs], [tuple(result.shape) for result in results])
    except ValueError as error:
        return SoundnessVerdict(1, Counterexample(op_text(the_op(module)), str(error)))
    return check_op(module, inputs)


def _given(target: str, samples: Sequence[str]) -> Iterator[tuple[list[Spec], Domain, Call]]:
    for sample in samples:
        matches = [_SPEC.fullmatch(item.strip()) for item in sample.split(",")]
        if not all(matches):
            raise ValueError(f"sample '{sample}' is not a list of operands like 6x4, 4x5 or 6:int64<5 or scalar")
        specs = [_spec(match) for match in matches if match is not None]
        highs = [int(match["high"]) for match in matches if match is not None and match["high"]]
        call = call_on(target, specs, {})
        domain = Domain("normal", min(highs)) if highs else find_domain(call, specs)
        if domain is None or run(call, draw(specs, domain, 1)) is None:
            raise RuleCheckError(f"{target} does not run on operands {sample}: {_refusal(call, specs)}")
        yield specs, domain, call


def _spec(match: re.Match[str]) -> Spec:
    shape = () if match["shape"] == "scalar" else tuple(map(int, match["shape"].split("x")))
    dtype = getattr(torch, match["dtype"] or "float64", None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"'{match['dtype']}' is not a dtype of torch, such as float64 or int64")
    return shape, dtype


def _made(target: str, notation: Notation) -> Iterator[tuple[list[Spec], Domain, Call]]:
    """Yield samples that the op accepts, with factors of different and of equal sizes."""
    factors = list(dict.fromkeys(f for value in notation.operands for dim in value for f in dim))
    count, last = 0, None
    for sizes in (dict(zip(factors, itertools.cycle(_SIZES), strict=False)), dict.fromkeys(factors, 6)):
        shapes = [_shape(value, {**sizes, **notation.sizes}) for value in notation.operands]
        for dtypes in itertools.islice(itertools.product(_DTYPES, repeat=len(shapes)), 81):
            specs = list(zip(shapes, dtypes, strict=True))
            last = (call_on(target, specs, {}), specs)
            if (domain := find_domain(*last)) is not None:
                count += 1
                yield specs, domain, last[0]
                break
    if not count:
        reason = _refusal(*last) if last is not None else "it has no operands"
        raise RuleCheckError(f"{target} runs on none of the generated samples ({reason}); give one, such as '6x4, 4x5'")


def _shape(value: tuple[tuple[str, ...], ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape: list[int] = []
    for dim in value:
        size = 1
        for factor in dim:
            size *= sizes[factor]
        shape.append(size)
    return tuple(shape)


def _refusal(call: Call, specs: Sequence[Spec]) -> str:
    try:
        make_call(call, draw(specs, Domain("normal", 2), 0))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "its results are not finite tensors"
