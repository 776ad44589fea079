"""
The torch ops that an interpreter, a profiler or a program may run: ops that only compute tensors.

IR is data from an untrusted author, and torch has ops that read files, print, communicate, or write to their
arguments. An op may run if torch declares it a function of tensors and plain values, and either

- the op belongs to `aten`, `prims` or this package, or
- this process vouches for the op: a rule is registered for it (`register_rule`, `check_rule`), or a model that was
  captured in this process calls it.

Torch's declaration is the op's schema and its tags. An op with a private name also needs a shape kernel, which computes
only the shape of the result: ops without one cannot have been captured.
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
"""The types that an argument may have; lists of these types and None are also allowed."""

_GENERATOR = "Generator"
"""The type of the generator argument of random ops. No attribute has this type, so the argument keeps its default."""

_WORDS = frozenset(
    {"approximate", "rounding_mode", "reduce", "padding", "padding_mode", "pad_mode", "padding_side", "mode", "norm",
     "ord", "p", "UPLO", "driver", "side", "interpolation", "equation", "indexing"}
)  # fmt: skip
"""Text arguments of torch's own ops that are safe: each selects one of a few modes, or is the equation of an einsum."""

_NO_FUNCTIONS = frozenset({"set", "resize", "resize_as", "_resize_output"})
"""Ops of aten whose results alias operands or contain uninitialized memory, although torch declares otherwise."""

_SHAPE_KERNELS = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd",
                  "CompositeExplicitAutogradNonFunctional")  # fmt: skip

_vouched_for: set[str] = set()


def vouch_for(name: str) -> None:
    """Let programs of this process call `ns::op.overload`, which the user's code calls or names."""
    _vouched_for.add(name)


def check_allowed(target: str, op: object) -> OpOverload:
    """
    Return `op` if it only computes tensors from tensors and plain values.

    Args:
        target: `ns.op.overload`, as `torch.ops` spells it.
        op: the object in `torch.ops` under this name.

    Raises:
        VerifyException: the op may not run; the message names the op, the reason and the remedy.
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
    """Return whether this process vouches for `ns::op.overload`."""
    return name in _vouched_for or bool(registered_rules(name))


def _full_name(op: OpOverload) -> str:
    return f"{op._schema.name}.{op._overloadname}"


def _unsafe(op: OpOverload) -> str | None:
    """Return the reason why `op` is unsafe according to its schema, or None if it is safe."""
    schema = op._schema
    if op.namespace in _COMMUNICATING:
        return "communicates"
    if not torch._C._dispatch_has_kernel(op.name()):
        return "is an op of TorchScript, not of the dispatcher"
    if not schema.returns or any(_element(result.type) != "Tensor" for result in schema.returns):
        return "returns a value that is not a tensor"
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
            yield f"takes an argument that is neither tensor nor plain value ('{argument.name}' is a {kind})"


def _element(kind: object) -> str:
    """Return the type of an argument or result without `Optional`; for a list, the type of its items."""
    text = str(kind)
    for wrapper in ("Optional[", "List[", "Optional["):
        text = text.removeprefix(wrapper)
    return text.rstrip("]")


def _is_torchs(op: OpOverload) -> bool:
    """Return whether `op` belongs to torch or this package and is known to be a pure function."""
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
