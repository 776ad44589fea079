"""
From an op that computes to the call that it stands for: what to call, with which arguments, on one rank.

The interpreter makes these calls and the emitter prints them, so that both run the same program. Arguments
that carry global sizes (the `size` of a view or of a factory) become the sizes of the rank's part, as the
op's row in the table says. Where and how a tensor lies in memory (device, layout, `memory_format`) is left
to the one that calls: every view becomes a reshape, which takes any strides, so no result depends on them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload
from xdsl.ir import TypeAttribute
from xdsl.utils.exceptions import VerifyException

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, shape_of
from ...dialects.train import FOUND_INF, FUSED, ForeachOp, SumOfSquaresOp, TrainOp
from ...ir.mesh import Mesh
from ...ir.ops.foreach import FOREACH
from ...ir.sharding import local_slices
from ...ir.signatures import rank_sizes
from ..fused import update_ops
from ..fused.table import FUSED_OPS
from .allowed_ops import check_allowed


@dataclass(frozen=True)
class Operand:
    """The op's operand number `index`, put in the order of its dims where it must lie so in memory (`ordered`)."""

    index: int
    ordered: bool = False


@dataclass(frozen=True)
class Dtype:
    """A dtype under torch's name, as `float32`."""

    name: str


Arg: TypeAlias = "Operand | Dtype | bool | int | float | str | tuple[Arg, ...] | None"


@dataclass(frozen=True)
class Call:
    """
    One call on one rank.

    `target` is `aten.mm.default` or `ns.op.overload`, a name in `torch.ops`; or one of the functions that the
    runtime has for fused ops: `attention`, `attention_backward`, `random_*`, `adam_`, `adamw_`, `sgd_`, `increment`,
    `foreach` and `joined_*` of several parameters; or for ops that look something up on a part of it:
    `embedding_part`, ..., which are passed `part=(start, stop, size)`.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()


def call_of(op: ComputeOp, mesh: Mesh | None = None, rank: int = 0) -> Call:
    """
    The call that `op` stands for on `rank`.

    Args:
        mesh: what the op's signature refers to; needed where it has one.

    Raises:
        VerifyException: the op lacks an argument that its schema requires, or torch has no such op.
    """
    if op.overload in _RESHAPES:
        return Call("aten.reshape.default", (Operand(0), _local_size(op, "result0", mesh, rank)))
    given = _arguments(op, mesh, rank)
    if isinstance(op, ForeachOp):
        return _foreach_call(op, given)
    if isinstance(op, SumOfSquaresOp):
        return Call("sum_of_squares", (tuple(map(Operand, range(len(op.args)))),))
    if isinstance(op, TrainOp):
        # The optimizer may lack a state, whose operand is then None.
        places: dict[str, Arg] = {name: Operand(index) for index, name in enumerate(op.operand_names())}
        return _call_of_update(type(op), places, given)
    target = _target(op.overload)
    positional, keywords = _bind(op, target, given)
    if (part := _indexed_part(op, mesh, rank)) is None:
        return Call(target, positional, keywords)
    return Call(_on_part(target), positional, (*keywords, ("part", part)))


_RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "squeeze", "squeeze.dim", "squeeze.dims"})
"""
Run as a reshape to the local size: a collective's result need not have the strides that a view asks for, and
a squeeze would take out a dim of which a rank happens to have one element.
"""

_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


@dataclass(frozen=True)
class _Parameter:
    """One parameter of a schema; `type` is torch's word for its type, empty for those of the fused ops."""

    name: str
    type: str = ""
    default: object = None
    required: bool = False
    """Whether it has no default and may not be None."""
    omissible: bool = False
    """Whether a call may leave it out."""
    keyword_only: bool = False

    @property
    def takes_list(self) -> bool:
        return self.type in ("List[Tensor]", "List[Optional[Tensor]]")


def _target(overload: str) -> str:
    """The full name of an overload: `mm` is `aten.mm.default`, `ns::op.overload` is `ns.op.overload`."""
    if overload in FUSED_OPS:
        return overload
    space, _, name = overload.rpartition("::")
    return f"{space or 'aten'}.{name}" + ("" if "." in name else ".default")


@lru_cache(maxsize=1024)
def resolve(target: str) -> OpOverload:
    """The op of `torch.ops` called `target`; VerifyException where torch has none, or it may not be run."""
    found: object = torch.ops
    for name in target.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            message = f"torch has no op '{target}'; import the library that registers it"
            raise VerifyException(message) from error
    return check_allowed(target, found)


@lru_cache(maxsize=1024)
def _parameters(target: str) -> tuple[_Parameter, ...]:
    if target in FUSED_OPS:
        of_fused = FUSED_OPS[target].parameters
        return tuple(_Parameter(p.name, "", p.default, p.required, keyword_only=p.keyword_only) for p in of_fused)
    return tuple(map(_parameter, resolve(target)._schema.arguments))


def _parameter(argument: torch._C.Argument) -> _Parameter:
    text, omissible = str(argument.type), argument.has_default_value()
    return _Parameter(
        argument.name,
        text,
        argument.default_value if omissible else None,
        not omissible and not text.startswith("Optional"),
        omissible,
        argument.kwarg_only,
    )


def _bind(op: ComputeOp, target: str, given: Mapping[str, Arg]) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    """The arguments in the order of the schema; the trailing ones that have their default are left out."""
    parameters = _parameters(target)
    values = {**given, **dict(_operands(op, parameters, given))}
    known = {parameter.name for parameter in parameters}
    if unknown := [name for name in values if name not in known]:
        raise VerifyException(f"'{op.name}' has an argument '{unknown[0]}' that {target} does not take")
    if missing := [p.name for p in parameters if p.required and p.name not in values]:
        raise VerifyException(f"'{op.name}' lacks the argument '{missing[0]}' of {target}")
    values = {name: value for name, value in values.items() if name not in _PLACEMENT}
    ordered = [parameter for parameter in parameters if not parameter.keyword_only]
    while ordered and ordered[-1].omissible and ordered[-1].name not in values:
        ordered.pop()
    positional = tuple(values.get(parameter.name, _plain(parameter.default)) for parameter in ordered)
    keywords = (p.name for p in parameters if p.keyword_only and p.name in values)
    return positional, tuple((name, values[name]) for name in keywords)


def _operands(op: ComputeOp, parameters: tuple[_Parameter, ...], given: Mapping[str, Arg]) -> Iterator[tuple[str, Arg]]:
    """The operands by parameter name; those of an op without a row follow the schema's order."""
    if not isinstance(op, AtenOp):
        yield from _opaque_operands(len(op.args), [p for p in parameters if p.name not in given])
        return
    names = op.operand_names()
    listed = {parameter.name for parameter in parameters if parameter.takes_list}
    for name in dict.fromkeys(names):
        places = tuple(Operand(i, op.spec.ordered) for i, other in enumerate(names) if other == name)
        yield name, places if name in listed else places[0]


def _opaque_operands(operands: int, free: Sequence[_Parameter]) -> Iterator[tuple[str, Arg]]:
    """One operand for each parameter of a tensor; a list takes those that the others leave."""
    tensors = [parameter for parameter in free if "Tensor" in parameter.type]
    spare = operands - sum(1 for parameter in tensors if not parameter.takes_list)
    at = 0
    for parameter in tensors:
        if parameter.takes_list:
            yield parameter.name, tuple(Operand(i, ordered=True) for i in range(at, at + max(spare, 0)))
            at += max(spare, 0)
        elif at < operands:
            yield parameter.name, Operand(at, ordered=True)
            at += 1


def _arguments(op: ComputeOp, mesh: Mesh | None, rank: int) -> dict[str, Arg]:
    """The arguments that are not tensors, local to `rank`, and None for the tensors that are absent."""
    given: dict[str, Arg] = dict.fromkeys(op.absent())
    for name, value in op.arguments().items():
        given[name] = Dtype(value) if isinstance(op.attributes[name], TypeAttribute) else _plain(value)
    localize = op.spec.localize if isinstance(op, AtenOp) and op.spec.localize else {}
    for name, place in localize.items():
        # Offsets of a part are arguments of the local call, not of the op.
        if name in given or "." in place:
            given[name] = _local_size(op, place, mesh, rank)
    return given


_FACTOR = re.compile(r"factor (?P<name>\w+)(?P<all>\*)?")
_PLACE = re.compile(r"(?P<side>operand|result)(?P<index>\d+)(?P<what>\.start|\.whole)?(?:\[(?P<dim>\d+)\])?")


def _local_size(op: ComputeOp, place: str, mesh: Mesh | None, rank: int) -> Arg:
    """
    The rank's shape of `operand1` or `result0`, of `result0[2]` its one size; of `result0.start` the index, in the
    full value, of its first element along each dim; of `result0.whole` the shape of that value; of `factor g` the
    size of its part of the rule's factor, of `factor r*` those of r0, r1 and so on.
    """
    if (factor := _FACTOR.fullmatch(place)) is not None:
        return _factor_size(op, factor["name"], factor["all"] is not None, mesh, rank)
    match = _PLACE.fullmatch(place)
    assert match is not None, f"'{op.name}' localises an argument by '{place}'"
    index, of_result = int(match["index"]), match["side"] == "result"
    shape = shape_of(op.outs[index] if of_result else op.args[index])
    part = tuple(slice(0, size) for size in shape)
    if (signature := op.signature) is not None:
        sharding = (signature.results if of_result else signature.operands)[index]
        part = local_slices(shape, sharding, _given(mesh, op), rank)
    if match["what"] == ".whole":
        numbers = shape
    else:
        numbers = tuple(each.start if match["what"] else each.stop - each.start for each in part)
    return numbers if match["dim"] is None else numbers[int(match["dim"])]


def _factor_size(op: ComputeOp, name: str, all_of_them: bool, mesh: Mesh | None, rank: int) -> Arg:
    rule, signature = op.rule(), op.signature
    sizes = rule.sizes if signature is None else rank_sizes(rule, signature, _given(mesh, op), rank)
    if not all_of_them:
        return sizes[name]
    numbers = sorted(int(each[len(name) :]) for each in sizes if re.fullmatch(rf"{name}\d+", each))
    return tuple(sizes[f"{name}{number}"] for number in numbers)


def _given(mesh: Mesh | None, op: ComputeOp) -> Mesh:
    if mesh is None:
        raise VerifyException(f"'{op.name}' has a signature, but no mesh was given to interpret it")
    return mesh


def _on_part(target: str) -> str:
    """The runtime's function for an op whose indexed factor is split."""
    if target in FUSED_OPS:
        return target
    name = target.removeprefix("aten.").removesuffix(".default").removeprefix("_unsafe_")
    return f"{name.replace('.', '_').lower()}_part"


def _indexed_part(op: ComputeOp, mesh: Mesh | None, rank: int) -> tuple[int, int, int] | None:
    """Where the rank's part of the indexed factor starts and stops, and its size; None where it is not split."""
    if (signature := op.signature) is None or not (rule := op.rule()).indexed:
        return None
    shardings = (*signature.operands, *signature.results)
    for value, dims, sharding in zip((*op.args, *op.outs), (*rule.operands, *rule.results), shardings, strict=True):
        for at, (dim, spread) in enumerate(zip(dims, sharding.dims, strict=True)):
            if spread.axes and rule.indexed.keys() & set(dim):
                part = local_slices(shape_of(value), sharding, _given(mesh, op), rank)[at]
                return part.start, part.stop, shape_of(value)[at]
    return None


def differs_by_rank(op: ComputeOp) -> bool:
    """Whether the call of `op` may differ between ranks: it carries local sizes or is passed its part."""
    return op.signature is not None and isinstance(op, AtenOp) and bool(op.spec.localize or op.rule().indexed)


def _plain(value: Any) -> Arg:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


_UPDATES: Mapping[str, tuple[str, Callable[..., object]]] = {
    "train.adam": ("adam_", update_ops.adam),
    "train.adamw": ("adamw_", update_ops.adamw),
    "train.sgd": ("sgd_", update_ops.sgd),
    "train.increment": ("increment", update_ops.increment),
    "train.assign": ("assign_", update_ops.assign),
}
"""Update -> the runtime's function, and the one that takes the same settings here."""


def _foreach_call(op: ForeachOp, given: Mapping[str, Arg]) -> Call:
    """A multi-tensor op: a function of lists, of torch's or for updates that are fused."""
    places: dict[str, Arg] = {name: tuple(map(Operand, op.operands_of(name))) for name in op.list_names}
    places |= {name: Operand(op.operands_of(name).start) for name in op.shared_names}
    if op.is_whole_update:
        call = _call_of_update(FUSED[op.overload.removeprefix("train.")], places, given)
        return Call(f"joined_{call.target}", call.args, call.kwargs)
    if (form := FOREACH.get(op.overload)) is None:
        return Call("foreach_", ("copy", *places.values()))
    values = {**given, **places}
    options = tuple((name, value) for name, value in given.items() if name not in form.arguments)
    return Call("foreach", (form.function, *(values[name] for name in form.arguments)), options)


def _call_of_update(op: type[TrainOp], places: Mapping[str, Arg], given: Mapping[str, Arg]) -> Call:
    settings = {name: value for name, value in given.items() if name not in op.OPERANDS}
    if "beta1" in settings:
        settings = {"betas": (settings.pop("beta1"), settings.pop("beta2")), **settings}
    target, function = _UPDATES[op.name]
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if unknown := [name for name in settings if name not in known]:
        raise VerifyException(
            f"'{op.name}' has an unknown setting {unknown[0][:60]!r}; expected some of {', '.join(known)}"
        )
    named = (*op.OPTIONAL, FOUND_INF)
    settings = {**{name: places[name] for name in named if name in places}, **settings}
    positional = (places.get(name) for name in op.OPERANDS if name not in op.OPTIONAL)
    return Call(target, tuple(positional), tuple(settings.items()))
