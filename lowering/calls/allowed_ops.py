"""
The ops of torch that an interpreter, a profiler or a program may run: those that compute tensors, and no more.

IR is data that anybody may have written, and torch has ops that read files, print, communicate, or write into what
they are given. An op is run if torch itself says that it is a function of tensors and plain values, and it is

- of `aten`, `prims` or this package, or
- any other that somebody vouches for in this process: by a rule for it (`register_rule`, `check_rule`), or because a
  model that was captured here calls it.

What torch says is the op's schema, its tags, and whether it has a kernel that gives the result's shape without
computing it: what has none was not captured, but for a few whose names are public.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._ops import OpOverload
from xdsl.utils.exceptions import VerifyException

from ...ir.ops.registered import registered_rules
from ...ir.ops.table import op_table

_OURS = frozenset({"aten", "prims", "shardwright"})

_COMMUNICATING = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"})
"""Namespaces whose ops communicate, for which nobody can vouch: the compiler places collectives itself."""

_PLAIN = frozenset(
    {"Tensor", "int", "SymInt", "bool", "SymBool", "float", "number", "complex", "ScalarType", "Layout", "MemoryFormat",
     "Device"}
)  # fmt: skip
"""What an argument may be, or a list of it, or None in its place."""

_GENERATOR = "Generator"
"""What no attribute is, so that the argument keeps its default; ops that draw have it."""

_WORDS = frozenset(
    {"approximate", "rounding_mode", "reduce", "padding", "padding_mode", "pad_mode", "padding_side", "mode", "norm",
     "ord", "p", "UPLO", "driver", "side", "interpolation", "equation", "indexing"}
)  # fmt: skip
"""Arguments of torch's own ops that are a word out of a few, or an einsum's equation: text that names nothing else."""

_NO_FUNCTIONS = frozenset({"set", "resize", "resize_as", "_resize_output"})
"""Ops of aten whose results share memory with operands, or have memory that was never written, whatever torch says."""

_SHAPE_KERNELS = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd",
                  "CompositeExplicitAutogradNonFunctional")  # fmt: skip

_vouched_for: set[str] = set()


def vouch_for(name: str) -> None:
    """Let programs of this process call `ns::op.overload`: its user's code does, or asks for it by name."""
    _vouched_for.add(name)


def check_allowed(target: str, op: object) -> OpOverload:
    """
    The op, which is known to compute tensors from tensors and plain values, and no more.

    Args:
        target: `ns.op.overload`, as `torch.ops` spells it.
        op: what it has there.

    Raises:
        VerifyException: the message names the op, says why it is not run, and what to do.
    """
    if not isinstance(op, OpOverload):
        raise VerifyException(f"'{target}' is not an overload of a torch op; write it as ns::op.overload")
    if (fault := _unsafe(op)) is not None:
        raise VerifyException(
            f"'{target}' {fault}, and a step may hold only ops that compute tensors from tensors and plain values;"
            " compute it outside of the step, or write a functional custom op for it (torch.library)"
        )
    if not (_is_torchs(op) or is_vouched_for(_full_name(op))):
        name = _full_name(op)
        raise VerifyException(
            f"'{target}' is not one of the functional torch ops that a step may contain; if you trust it, register a"
            f" sharding rule for it first, as shardwright.register_rule('{name}', '([a], [b]) -> ([a]) "
            f"replicated={{a, b}}')"
        )
    return op


def is_vouched_for(name: str) -> bool:
    """Whether somebody in this process vouches for `ns::op.overload`."""
    return name in _vouched_for or bool(registered_rules(name))


def _full_name(op: OpOverload) -> str:
    return f"{op._schema.name}.{op._overloadname}"


def _unsafe(op: OpOverload) -> str | None:
    """What an op does beyond computing, by its schema; None where it does nothing."""
    schema = op._schema
    if op.namespace in _COMMUNICATING:
        return "communicates"
    if not torch._C._dispatch_has_kernel(op.name()):
        return "is an op of TorchScript, not of the dispatcher"
    if not schema.returns or any(_element(result.type) != "Tensor" for result in schema.returns):
        return "gives what is no tensor"
    if schema.is_mutable:
        return "writes to its arguments"
    return next(_unsafe_arguments(op), None)


def _unsafe_arguments(op: OpOverload) -> Iterator[str]:
    own = op.namespace not in _OURS
    for argument in op._schema.arguments:
        kind = _element(argument.type)
        if kind == "str":
            if not own and argument.name not in _WORDS:
                yield f"takes text (its argument '{argument.name}')"
        elif kind == _GENERATOR and argument.has_default_value():
            continue
        elif kind not in _PLAIN:
            yield f"takes what is no tensor or plain value (its argument '{argument.name}' is a {kind})"


def _element(kind: object) -> str:
    """The type of an argument or result, or of the items of a list, without saying whether it may be None."""
    text = str(kind)
    for wrapper in ("Optional[", "List[", "Optional["):
        text = text.removeprefix(wrapper)
    return text.rstrip("]")


def _is_torchs(op: OpOverload) -> bool:
    """Whether an op is one of torch's own, or of this package, that is known to be a function."""
    name = op._schema.name.partition("::")[2]
    if op.namespace not in _OURS:
        return False
    if op.namespace == "aten" and {name, f"{name}.{op._overloadname}"} & op_table().keys():
        return True
    if "maybe_aliasing_or_mutating" in {tag.name for tag in op.tags}:
        return False
    if name.startswith("_test") or name in _NO_FUNCTIONS:
        return False
    if not name.startswith("_") or name.startswith("__"):
        return True
    return "unsafe" not in name and any(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _SHAPE_KERNELS
    )
