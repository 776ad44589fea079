"""Checks of an op on one sample other than its signatures: its strides, and its backward on shards."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from import_function import import_function
from ir_files import context, parse
from op_samples import OpSample
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.aten import AtenOp
from shardwright.dialects.compute import SIGNATURE, ComputeOp
from shardwright.dialects.mesh_ops import MeshOp
from shardwright.dialects.sharding_attrs import SignatureAttr
from shardwright.ir.mesh import Mesh
from shardwright.lowering.calls.calls import call_of
from shardwright.lowering.calls.local_calls import make_call
from shardwright.lowering.interpreter.interpreter import find_function, interpret
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.lowering.probe.soundness import MESHES, first_difference, spread_signatures

_CONTEXT = context()


def sample_op(sample: OpSample) -> tuple[AtenOp, list[torch.Tensor]]:
    """Return the op of a sample, and inputs for it."""
    module = parse(sample.module, _CONTEXT)
    return next(op for op in module.walk() if isinstance(op, AtenOp)), random_inputs(find_function(module))


def strides_matter(sample: OpSample) -> bool:
    """Return whether the op has other results if its operands have other strides."""
    op, inputs = sample_op(sample)
    expected = make_call(call_of(op), inputs)
    found = (make_call(call_of(op), list(map(turned, inputs))) for turned in (_transposed, _channels_last))
    pairs = [pair for results in found for pair in zip(expected, results, strict=True)]
    return any(
        one is not None and other is not None and first_difference(one, other) is not None for one, other in pairs
    )


def _transposed(value: torch.Tensor) -> torch.Tensor:
    """Return the same values with other strides: the last dim but one is the innermost."""
    if value.dim() >= 2:
        return value.mT.contiguous().mT
    return value.repeat_interleave(2)[::2] if value.dim() else value


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    """Return the same values with other strides: the second dim is the innermost."""
    return value.movedim(1, -1).contiguous().movedim(-1, 1) if value.dim() >= 3 else value


def with_random_signatures(module: ModuleOp, mesh: Mesh, drawn: random.Random) -> ModuleOp:
    """
    Return the module on `mesh`, each op with a random signature that has no partial operand.

    Partial operands are left out: summing them rounds, and a later comparison (as in the gradient of a maximum) would
    see another value.
    """
    placed = module.clone()
    placed.body.block.insert_ops_before([MeshOp(mesh)], find_function(placed))
    for op in placed.walk():
        if isinstance(op, ComputeOp):
            every = spread_signatures(op.rule(), mesh, uneven=True)
            whole = [each for each in every if not any(sharding.partial for sharding in each.operands)]
            op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, drawn.choice(whole))
    return placed


def backward_fault(sample: OpSample, draws: int, seed: int = 0) -> tuple[int, str | None]:
    """
    Compare the gradients of torch's autograd with the results of the backward ops on shards.

    Returns:
        The number of random assignments of signatures that were run, 0 for an op without a gradient; and the fault.
    """
    op, inputs = sample_op(sample)
    call = call_of(op)
    floats = [i for i, each in enumerate(inputs) if each.is_floating_point()]
    if not floats:
        return 0, None

    def forward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        operands = list(inputs)
        for i, value in zip(floats, given, strict=True):
            operands[i] = value
        return tuple(each for each in make_call(call, operands) if each is not None and each.is_floating_point())

    wanted = [inputs[i] for i in floats]
    tracked = [each.clone().requires_grad_() for each in wanted]
    outs = [out for out in forward(*tracked) if out.requires_grad]
    if not outs:
        return 0, None
    generator = torch.Generator().manual_seed(seed)
    tangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outs]
    expected = torch.autograd.grad(outs, tracked, tangents, allow_unused=True, materialize_grads=True)

    def backward(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        tracked = [each.detach().requires_grad_() for each in given[: len(wanted)]]
        outs = [out for out in forward(*tracked) if out.requires_grad]
        found = torch.autograd.grad(outs, tracked, given[len(wanted) :], allow_unused=True, materialize_grads=True)
        return list(found)

    imported = import_function(backward, [*wanted, *tangents], functional=False)
    drawn = random.Random(seed)
    for number in range(draws):
        mesh = MESHES[number % len(MESHES)]
        module = with_random_signatures(imported.module, mesh, drawn)
        found = interpret(module, imported.inputs)
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            if one.shape != other.shape or first_difference(one, other) is not None:
                return number + 1, f"{sample.line}: gradient {index} on {mesh}\n{module}"
    return draws, None
