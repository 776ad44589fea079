"""
Infer the sharding rule of an op that the op table lacks, by probing the op.

The op runs on small random inputs. Dims of equal size (or multiples) in some of its operands are cut into two uneven
parts. The results of the parts may give the full result by concatenation along a dim (a batch), by a sum, maximum or
minimum (a reduction), or they may equal it. Operands with f(a + b) = f(a) + f(b) pass partial values through. The
inferred rule is then checked like every other rule (`soundness`), and parts that do not hold are dropped: a missing
rule costs time, a wrong rule trains another model.

Ops that draw random numbers, write to their operands, return values other than tensors, or refuse all generated inputs
are not probed. Behaviour at large sizes only is detected when a plan uses the op (`at_use`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from ...dialects.aten import RULE, OpaqueOp
from ...dialects.compute import dtype_of, shape_of
from ...dialects.sharding_attrs import RuleAttr
from ...ir.mesh import Mesh
from ...ir.sharding import Reduction
from ..calls.calls import Call, call_of, resolve
from ..calls.dtypes import torch_dtype
from ..interpreter.errors import InterpreterError
from .one_op import Domain, Spec, call_on, draw, find_domain, one_op_module, run, spec_of
from .probed_rule import Place, ProbedFactor, ProbedRule, Shape
from .shapes import MOST_ELEMENTS, numbers_of, resized, small_sizes
from .soundness import check_op, first_difference

_TRIALS = (1, 2, 3)
_MOST_CUTS = 300
_MOST_OPERANDS = 12
_LARGEST_LINEAR_SET = 3


@dataclass(frozen=True)
class Use:
    """A call of an op to probe, with the specs of its small operands (in double precision if possible) and results."""

    target: str
    call: Call
    specs: tuple[Spec, ...]
    results: tuple[Spec, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    domain: Domain

    @property
    def operand_shapes(self) -> list[Shape]:
        """The shapes of the operands."""
        return [shape for shape, _ in self.specs]

    @property
    def result_shapes(self) -> list[Shape]:
        """The shapes of the results."""
        return [shape for shape, _ in self.results]

    def inputs(self, seed: int) -> list[torch.Tensor]:
        """Draw random operands."""
        return draw(self.specs, self.domain, seed)


def small_use(op: OpaqueOp) -> Use | None:
    """Return a use of `op` on small operands, or None if it cannot be probed."""
    if not op.args or not op.outs or len(op.args) > _MOST_OPERANDS or not _may_run(op):
        return None
    operands, outs = ([shape_of(value) for value in values] for values in (op.args, op.outs))
    numbers = numbers_of(call_of(op))
    sizes = [size for shape in (*operands, *outs) for size in shape]
    for small in (small_sizes(sizes, numbers), {size: size for size in sizes}):
        shapes, expected = resized(operands, small), resized(outs, small)
        if any(math.prod(shape) > MOST_ELEMENTS for shape in (*shapes, *expected)):
            continue
        for double in (True, False):
            dtypes = [torch_dtype(dtype_of(value)) for value in op.args]
            dtypes = [torch.float64 if double and dtype.is_floating_point else dtype for dtype in dtypes]
            use = _tried(op, tuple(zip(shapes, dtypes, strict=True)))
            if use is not None and [shape for shape, _ in use.results] == list(expected):
                return use
    return None


def _tried(op: OpaqueOp, specs: tuple[Spec, ...]) -> Use | None:
    attributes = {name: value for name, value in op.attributes.items() if "." not in name}
    try:
        call = call_on(op.overload, specs, attributes)
    except VerifyException:
        return None
    if (domain := find_domain(call, specs)) is None:
        return None
    results = run(call, draw(specs, domain, 0))
    if results is None or len(results) != len(op.outs):
        return None
    return Use(op.overload, call, specs, tuple(map(spec_of, results)), tuple(attributes.items()), domain)


def _may_run(op: OpaqueOp) -> bool:
    """Return whether the op may run and its tags promise a function of its operands with static shapes."""
    try:
        target = resolve(call_of(op).target)
    except VerifyException:
        return False
    forbidden = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return not forbidden & set(target.tags)


def infer_rule(use: Use) -> ProbedRule:
    """Infer and check the rule of one use of an op; the rule is empty if nothing was found."""
    probe = _Probe.of(use)
    if probe is None:
        return ProbedRule(())
    # Select factors that share no dim, in decreasing order of the number of results, then of operands.
    taken: set[tuple[str, Place]] = set()
    chosen: list[ProbedFactor] = []
    for factor in sorted(probe.factors(), key=lambda f: (-len(f.results), -len(f.operands))):
        places = {("operand", p) for p in factor.operands} | {("result", p) for p in factor.results}
        if not places & taken:
            taken |= places
            chosen.append(factor)
    return believed(use, ProbedRule(tuple(chosen), tuple(probe.linear_sets())))


def believed(use: Use, rule: ProbedRule) -> ProbedRule:
    """Check an inferred rule and return it, or else its parts that hold separately, if they also hold together."""
    if not rule or holds(use, rule):
        return rule
    factors = tuple(factor for factor in rule.factors if holds(use, ProbedRule((factor,))))
    linear = tuple(group for group in rule.linear if holds(use, ProbedRule((), (group,))))
    rest = ProbedRule(factors, linear)
    return rest if rest and holds(use, rest) else ProbedRule(())


def holds(use: Use, rule: ProbedRule) -> bool:
    """Return whether every signature of the rule gives the results of one device."""
    text = rule.notation(use.operand_shapes, use.result_shapes)
    if text is None:
        return False
    attributes: Mapping[str, Attribute] = {**dict(use.attributes), RULE: RuleAttr(text)}
    module = one_op_module(use.target, use.specs, use.results, attributes)
    try:
        checks = ((7, (Mesh.of(x=2), Mesh.of(x=3))), (8, (Mesh.of(x=3), Mesh.of(x=2, y=2))))
        return all(check_op(module, use.inputs(s), meshes=meshes, thorough=False).holds for s, meshes in checks)
    except InterpreterError:
        return False


@dataclass(frozen=True)
class _Trial:
    operands: list[torch.Tensor]
    results: list[torch.Tensor]


@dataclass(frozen=True)
class _Probe:
    """A use of an op, with trials on a few draws of its operands."""

    use: Use
    trials: tuple[_Trial, ...]

    @staticmethod
    def of(use: Use) -> _Probe | None:
        """Run the trials; return None if the op is not deterministic or modifies its operands."""
        trials: list[_Trial] = []
        for seed in _TRIALS:
            operands = use.inputs(seed)
            copies = [operand.clone() for operand in operands]
            results, again = run(use.call, operands), run(use.call, copies)
            if results is None or again is None or list(map(spec_of, results)) != list(use.results):
                return None
            if not all(map(_same, results, again)) or not all(map(_same, operands, use.inputs(seed))):
                return None
            trials.append(_Trial(operands, [result.clone() for result in results]))
        return _Probe(use, tuple(trials))

    def factors(self) -> Iterator[ProbedFactor]:
        """Yield the factors of all cuts that the op allows."""
        for places in itertools.islice(_cuts(self.use.operand_shapes), _MOST_CUTS):
            factor = self._cut(places)
            if factor is None and self._is_sum_so_far(places):
                factor = self._with_bias(places)
            if factor is not None:
                yield factor

    def _cut(self, places: tuple[Place, ...], bias: int | None = None) -> ProbedFactor | None:
        """Return the factor of these dims, or None unless the parts combine in the same way in every trial."""
        kinds = self._kinds(self.trials[0], places, bias)
        if kinds is None or any(self._kinds(trial, places, bias) != kinds for trial in self.trials[1:]):
            return None
        results = tuple((i, kind) for i, kind in enumerate(kinds) if type(kind) is int)
        reductions = {kind for kind in kinds if isinstance(kind, Reduction)}
        if len(reductions) > 1 or (reductions and "same" in kinds) or not (reductions or results):
            return None
        return ProbedFactor(places, results, next(iter(reductions), None), () if bias is None else (bias,))

    def _parts(self, trial: _Trial, places: tuple[Place, ...], bias: int | None) -> Iterator[list[torch.Tensor] | None]:
        size = min(trial.operands[i].shape[d] for i, d in places)
        cut = (size - 1) // 2 if size > 2 else 1
        for start, stop in ((0, cut), (cut, size)):
            operands = list(trial.operands)
            for i, d in places:
                times = operands[i].shape[d] // size
                operands[i] = operands[i].narrow(d, start * times, (stop - start) * times).contiguous()
            if bias is not None:
                share = trial.operands[bias] * 0.25
                operands[bias] = share if start == 0 else trial.operands[bias] - share
            yield run(self.use.call, operands)

    def _kinds(self, trial: _Trial, places: tuple[Place, ...], bias: int | None) -> tuple[object, ...] | None:
        size = min(trial.operands[i].shape[d] for i, d in places)
        parts: list[list[torch.Tensor]] = []
        for part in self._parts(trial, places, bias):
            if part is None or len(part) != len(trial.results):
                return None
            parts.append(part)
        kinds = [_kind(whole, one, other, size) for whole, one, other in zip(trial.results, *parts, strict=True)]
        return None if None in kinds else tuple(kinds)

    def _is_sum_so_far(self, places: tuple[Place, ...]) -> bool:
        """Return whether parts give results of the full shapes, so that their sum may be the result plus a bias."""
        for part in self._parts(self.trials[0], places, None):
            if part is None or list(map(spec_of, part)) != list(self.use.results):
                return False
        return True

    def _with_bias(self, places: tuple[Place, ...]) -> ProbedFactor | None:
        cut = {i for i, _ in places}
        for index, (_, dtype) in enumerate(self.use.specs):
            if index not in cut and dtype.is_floating_point and (found := self._cut(places, index)) is not None:
                return found if found.reduction is Reduction.SUM else None
        return None

    def linear_sets(self) -> Iterator[tuple[int, ...]]:
        """Yield the minimal sets of operands that all results are linear in."""
        floats = [i for i, (_, dtype) in enumerate(self.use.specs) if dtype.is_floating_point]
        if not all(dtype.is_floating_point for _, dtype in self.use.results):
            return
        minimal: list[set[int]] = []
        counts = range(1, min(_LARGEST_LINEAR_SET, len(floats)) + 1) if len(floats) <= 6 else (1,)
        for group in itertools.chain.from_iterable(itertools.combinations(floats, n) for n in counts):
            if not any(smaller <= set(group) for smaller in minimal) and self._is_linear(group):
                minimal.append(set(group))
                yield group

    def _is_linear(self, group: tuple[int, ...]) -> bool:
        base = list(self.trials[0].operands)
        terms: list[list[torch.Tensor]] = []
        one, other = (draw(self.use.specs, Domain("normal", self.use.domain.high), seed) for seed in _TRIALS[:2])
        for values in (one, other, [a + b for a, b in zip(one, other, strict=True)]):
            results = run(self.use.call, [values[i] if i in group else operand for i, operand in enumerate(base)])
            if results is None:
                return False
            terms.append(results)
        if not any(bool(result.any()) for result in terms[2]):
            return False
        return all(_same(a + b, both) and bool(both.isfinite().all()) for a, b, both in zip(*terms, strict=True))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and first_difference(one, other) is None


def _kind(whole: torch.Tensor, one: torch.Tensor, other: torch.Tensor, size: int) -> object:
    """Return how two parts combine to the result: the dim of a concatenation, a reduction, `same`, or None."""
    if one.shape == whole.shape == other.shape:
        if _same(one, whole) and _same(other, whole):
            # Equality proves little for booleans and integers: `any` of many booleans is mostly True.
            return "same" if whole.is_floating_point() else None
        if whole.dtype == torch.bool or whole.is_complex():
            return None
        for kind, combine in _REDUCTIONS.items():
            if _same(combine(one, other), whole):
                return kind
        return None
    for dim in range(whole.dim()):
        rest = [shape[:dim] + shape[dim + 1 :] for shape in (one.shape, other.shape, whole.shape)]
        if rest[0] == rest[1] == rest[2] and one.shape[dim] + other.shape[dim] == whole.shape[dim]:
            proportional = whole.shape[dim] % size == 0
            return dim if proportional and _same(torch.cat((one, other), dim), whole) else None
    return None


_REDUCTIONS = {Reduction.SUM: torch.add, Reduction.MAX: torch.maximum, Reduction.MIN: torch.minimum}


def _cuts(shapes: Sequence[Shape]) -> Iterator[tuple[Place, ...]]:
    """
    Yield sets of dims that may share a factor: at most one per operand, with sizes that are multiples of the smallest.

    Sets with more operands come first; among equals, sets of dims at equal positions come first.
    """
    for size in sorted({size for shape in shapes for size in shape if size > 1}):
        options = [
            [None, *(d for d, other in enumerate(shape) if other % size == 0 and 0 < other <= 8 * size)]
            for shape in shapes
        ]
        every = itertools.islice(itertools.product(*options), 4 * _MOST_CUTS)
        chosen = [tuple((i, d) for i, d in enumerate(dims) if d is not None) for dims in every]
        wanted = [places for places in chosen if places and any(shapes[i][d] == size for i, d in places)]
        yield from dict.fromkeys((*_aligned(shapes, size), *sorted(wanted, key=_disorder)))


def _aligned(shapes: Sequence[Shape], size: int) -> Iterator[tuple[Place, ...]]:
    """Yield, for each position, the dims of this size at this position in all operands."""
    for d in range(max(map(len, shapes))):
        if places := tuple((i, d) for i, shape in enumerate(shapes) if d < len(shape) and shape[d] == size):
            yield places


def _disorder(places: tuple[Place, ...]) -> tuple[int, int]:
    return -len(places), len({d for _, d in places})
