"""Build modules of one op that the op table lacks, and find inputs for it, to infer and check its rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region

from ...dialects.aten import OpaqueOp
from ..calls.arguments import element_type
from ..calls.calls import Call, call_of
from ..calls.local_calls import make_call

Shape = tuple[int, ...]
Spec = tuple[Shape, torch.dtype]
"""The shape and dtype of a tensor."""


def one_op_module(
    target: str, operands: Sequence[Spec], results: Sequence[Spec], attributes: Mapping[str, Attribute]
) -> ModuleOp:
    """Return a module whose only function consists of one `aten.opaque`."""
    types = [TensorType(element_type(dtype), shape) for shape, dtype in operands]
    block = Block(arg_types=types)
    for index, argument in enumerate(block.args):
        argument.name_hint = f"x{index}"
    outs = [TensorType(element_type(dtype), shape) for shape, dtype in results]
    properties = {"target": StringAttr(target)}
    op = OpaqueOp(operands=[block.args], result_types=[outs], properties=properties, attributes=dict(attributes))
    block.add_ops([op, ReturnOp(*op.results)])
    return ModuleOp([FuncOp("op", (types, outs), Region(block))])


def the_op(module: ModuleOp) -> OpaqueOp:
    """Return the op of a module from `one_op_module`."""
    return next(op for op in module.walk() if isinstance(op, OpaqueOp))


def spec_of(tensor: torch.Tensor) -> Spec:
    """Return the shape and dtype of `tensor`."""
    return tuple(tensor.shape), tensor.dtype


@dataclass(frozen=True)
class Domain:
    """
    The random inputs that an op accepts.

    Args:
        floats: `normal`; `unit`, between 0 and 1; `definite`, symmetric positive definite matrices.
        high: the exclusive upper bound of integers, which are drawn from 0.
    """

    floats: str
    high: int


def draw(specs: Sequence[Spec], domain: Domain, seed: int) -> list[torch.Tensor]:
    """Draw deterministic tensors of these specs; the share of True among booleans depends on the seed."""
    generator = torch.Generator().manual_seed(seed)
    return [_draw(shape, dtype, domain, seed, generator) for shape, dtype in specs]


def _draw(shape: Shape, dtype: torch.dtype, domain: Domain, seed: int, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < (0.5, 0.9, 0.1)[seed % 3]
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, domain.high, shape, generator=generator).to(dtype)
    normal = torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    if domain.floats == "definite" and len(shape) >= 2 and shape[-1] == shape[-2]:
        normal = normal @ normal.mH + torch.eye(shape[-1])
    elif domain.floats == "unit":
        normal = torch.rand(shape, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    return normal.to(dtype)


def find_domain(call: Call, specs: Sequence[Spec]) -> Domain | None:
    """Return a domain where `call` gives finite numbers, with the widest range of integers, or None."""
    for floats in ("normal", "definite", "unit"):
        widest: Domain | None = None
        for high in _ranges(specs):
            domain = Domain(floats, high)
            results = run(call, draw(specs, domain, 0))
            if results is None or not all(bool(result.isfinite().all()) for result in results):
                break
            widest = domain
        if widest is not None:
            return widest
    return None


def _ranges(specs: Sequence[Spec]) -> Iterator[int]:
    """Yield rising upper bounds of integers: 2, then the sizes of dims, since an integer may index a dim."""
    yield 2
    if any(not (d.is_floating_point or d.is_complex or d == torch.bool) for _, d in specs):
        yield from sorted({size for shape, _ in specs for size in shape if size > 2})


def run(call: Call, operands: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """Return the results of a call, or None if it refuses the operands or returns values other than tensors."""
    try:
        outputs = make_call(call, operands)
    # Ops raise these errors for operands that they do not accept; a bug of ours would raise another error.
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError, AssertionError):
        return None
    tensors = [output for output in outputs if output is not None]
    return tensors if all(isinstance(output, torch.Tensor) for output in tensors) else None


def call_on(target: str, operands: Sequence[Spec], attributes: Mapping[str, Attribute]) -> Call:
    """Return the call of an op on operands of these specs; raise VerifyException if the op or arguments are missing."""
    return call_of(the_op(one_op_module(target, operands, [], attributes)))
