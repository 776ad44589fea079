"""
Translate a compute op to the call that it stands for on one rank: the function and its arguments.

The interpreter makes these calls and the emitter prints them, so that both run the same program. Arguments
that carry global sizes (the `size` of a view or of a factory) become the sizes of the rank's shard, as the
op's row in the op table says. The caller chooses the device and memory layout of tensors (`device`, `layout`,
`memory_format`). Every view becomes a reshape, which accepts any strides, so no result depends on strides.
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
    """Operand number `index` of the op, made contiguous first if `ordered`."""

    index: int
    ordered: bool = False


@dataclass(frozen=True)
class Dtype:
    """A dtype by its name in torch, such as `float32`."""

    name: str


Arg: TypeAlias = "Operand | Dtype | bool | int | float | str | tuple[Arg, ...] | None"


@dataclass(frozen=True)
class Call:
    """
    One call on one rank.

    `target` is a name in `torch.ops` (`aten.mm.default`, `ns.op.overload`), or a function of the runtime: a fused op
    (`attention`, `attention_backward`, `random_*`, `adam_`, `adamw_`, `sgd_`, `increment`, and for several parameters
    `foreach` and `joined_*`), or a lookup in one shard of a tensor (`embedding_part`, ...), which takes
    `part=(start, stop, size)`.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()


def call_of(op: ComputeOp, mesh: Mesh | None = None, rank: int = 0) -> Call:
    """
    Return the call that `op` stands for on `rank`.

    Args:
        mesh: the mesh of the op's signature; required if the op has a signature.

    Raises:
        VerifyException: the op lacks an argument that its schema requires, or torch has no such op.
    """
    if op.overload in _RESHAPES:
        return Call("aten.reshape.default", (Operand(0), _local_size(op, "result0", mesh, rank)))
    arguments = _arguments(op, mesh, rank)
    if isinstance(op, ForeachOp):
        return _foreach_call(op, arguments)
    if isinstance(op, SumOfSquaresOp):
        return Call("sum_of_squares", (tuple(map(Operand, range(len(op.args)))),))
    if isinstance(op, TrainOp):
        # An optimizer may lack an optional state; its operand is then None.
        places: dict[str, Arg] = {name: Operand(index) for index, name in enumerate(op.operand_names())}
        return _call_of_update(type(op), places, arguments)
    target = _target(op.overload)
    positional, keywords = _bind(op, target, arguments)
    if (part := _indexed_part(op, mesh, rank)) is None:
        return Call(target, positional, keywords)
    return Call(_on_part(target), positional, (*keywords, ("part", part)))


_RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "squeeze", "squeeze.dim", "squeeze.dims"})
"""
Ops that run as a reshape to the local size: the result of a collective may lack the strides that a view requires,
and a squeeze would also remove a dim that has one element on this rank only.
"""

_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a schema; `type` is the name of its type in torch, empty for a fused op."""

    name: str
    type: str = ""
    default: object = None
    required: bool = False
    """Whether a call must pass the parameter a value other than None."""
    omissible: bool = False
    """Whether a call may omit the parameter."""
    keyword_only: bool = False

    @property
    def takes_list(self) -> bool:
        return self.type in ("List[Tensor]", "List[Optional[Tensor]]")


def _target(overload: str) -> str:
    """Return the full name of an overload: `aten.mm.default` for `mm`, `ns.op.overload` for `ns::op.overload`."""
    if overload in FUSED_OPS:
        return overload
    space, _, name = overload.rpartition("::")
    return f"{space or 'aten'}.{name}" + ("" if "." in name else ".default")


@lru_cache(maxsize=1024)
def resolve(target: str) -> OpOverload:
    """Return the op `target` of `torch.ops`; raise VerifyException if torch lacks the op or it may not run."""
    member: object = torch.ops
    for name in target.split("."):
        try:
            member = getattr(member, name)
        except AttributeError as error:
            message = f"torch has no op '{target}'; import the library that registers it"
            raise VerifyException(message) from error
    return check_allowed(target, member)


@lru_cache(maxsize=1024)
def _parameters(target: str) -> tuple[_Parameter, ...]:
    if target in FUSED_OPS:
        parameters = FUSED_OPS[target].parameters
        return tuple(_Parameter(p.name, "", p.default, p.required, keyword_only=p.keyword_only) for p in parameters)
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
    """Return positional and keyword arguments in the order of the schema, without trailing defaults."""
    parameters = _parameters(target)
    values = {**given, **dict(_operands(op, parameters, given))}
    accepted = {parameter.name for parameter in parameters}
    if unknown := [name for name in values if name not in accepted]:
        raise VerifyException(f"'{op.name}' has an argument '{unknown[0]}' that {target} does not take")
    if missing := [p.name for p in parameters if p.required and p.name not in values]:
        raise VerifyException(f"'{op.name}' lacks the argument '{missing[0]}' of {target}")
    values = {name: value for name, value in values.items() if name not in _PLACEMENT}
    slots = [parameter for parameter in parameters if not parameter.keyword_only]
    while slots and slots[-1].omissible and slots[-1].name not in values:
        slots.pop()
    positional = tuple(values.get(parameter.name, _plain(parameter.default)) for parameter in slots)
    keywords = (p.name for p in parameters if p.keyword_only and p.name in values)
    return positional, tuple((name, values[name]) for name in keywords)


def _operands(op: ComputeOp, parameters: tuple[_Parameter, ...], given: Mapping[str, Arg]) -> Iterator[tuple[str, Arg]]:
    """Yield the operands by parameter name; an op outside of the op table has operands in the order of its schema."""
    if not isinstance(op, AtenOp):
        yield from _opaque_operands(len(op.args), [p for p in parameters if p.name not in given])
        return
    names = op.operand_names()
    listed = {parameter.name for parameter in parameters if parameter.takes_list}
    for name in dict.fromkeys(names):
        places = tuple(Operand(i, op.spec.ordered) for i, other in enumerate(names) if other == name)
        yield name, places if name in listed else places[0]


def _opaque_operands(operands: int, free: Sequence[_Parameter]) -> Iterator[tuple[str, Arg]]:
    """Yield one operand for each tensor parameter; a list parameter takes all operands that remain."""
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
    """Return the arguments that are not tensors, local to `rank`, and None for each absent tensor."""
    arguments: dict[str, Arg] = dict.fromkeys(op.absent())
    for name, value in op.arguments().items():
        arguments[name] = Dtype(value) if isinstance(op.attributes[name], TypeAttribute) else _plain(value)
    localize = op.spec.localize if isinstance(op, AtenOp) and op.spec.localize else {}
    for name, place in localize.items():
        # The offset of a shard is an argument of the local call only, not of the op.
        if name in arguments or "." in place:
            arguments[name] = _local_size(op, place, mesh, rank)
    return arguments


_FACTOR = re.compile(r"factor (?P<name>\w+)(?P<all>\*)?")
_PLACE = re.compile(r"(?P<side>operand|result)(?P<index>\d+)(?P<what>\.start|\.whole)?(?:\[(?P<dim>\d+)\])?")


def _local_size(op: ComputeOp, place: str, mesh: Mesh | None, rank: int) -> Arg:
    """
    Return the size that `place` stands for on `rank`.

    `operand1` and `result0` stand for the local shape and `result0[2]` for one size of it; `result0.start` for the
    index of the shard's first element in the full value, and `result0.whole` for the shape of the full value;
    `factor g` for the local size of a factor of the rule, and `factor r*` for the sizes of r0, r1, ....
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
        sizes = shape
    else:
        sizes = tuple(span.start if match["what"] else span.stop - span.start for span in part)
    return sizes if match["dim"] is None else sizes[int(match["dim"])]


def _factor_size(op: ComputeOp, name: str, all_of_them: bool, mesh: Mesh | None, rank: int) -> Arg:
    rule, signature = op.rule(), op.signature
    sizes = rule.sizes if signature is None else rank_sizes(rule, signature, _given(mesh, op), rank)
    if not all_of_them:
        return sizes[name]
    numbers = sorted(int(factor[len(name) :]) for factor in sizes if re.fullmatch(rf"{name}\d+", factor))
    return tuple(sizes[f"{name}{number}"] for number in numbers)


def _given(mesh: Mesh | None, op: ComputeOp) -> Mesh:
    if mesh is None:
        raise VerifyException(f"'{op.name}' has a signature but its mesh is missing; pass the mesh")
    return mesh


def _on_part(target: str) -> str:
    if target in FUSED_OPS:
        return target
    name = target.removeprefix("aten.").removesuffix(".default").removeprefix("_unsafe_")
    return f"{name.replace('.', '_').lower()}_part"


def _indexed_part(op: ComputeOp, mesh: Mesh | None, rank: int) -> tuple[int, int, int] | None:
    """Return (start, stop, full size) of the rank's shard of the indexed factor, or None if it is not split."""
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
    """Return whether the call of `op` may differ between ranks: it has local sizes or an indexed shard as arguments."""
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
"""Update -> the runtime's function, and the function of this package that takes the same settings."""


def _foreach_call(op: ForeachOp, given: Mapping[str, Arg]) -> Call:
    """Return the call of a multi-tensor op: a `torch._foreach_*` function, or a fused update of several parameters."""
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
    accepted = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    if unknown := [name for name in settings if name not in accepted]:
        raise VerifyException(
            f"'{op.name}' has an unknown setting {unknown[0][:60]!r}; expected some of {', '.join(accepted)}"
        )
    settings = {**{name: places[name] for name in (*op.OPTIONAL, FOUND_INF) if name in places}, **settings}
    positional = (places.get(name) for name in op.OPERANDS if name not in op.OPTIONAL)
    return Call(target, tuple(positional), tuple(settings.items()))
