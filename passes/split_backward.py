"""Split the ops of backward that compute two gradients, so that a pipeline can delay weight gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, TensorType, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult
from xdsl.passes import ModulePass

from ..dialects.aten import AtenOp
from ..dialects.compute import SIGNATURE, plain_attribute
from ..dialects.kinds import entries_of
from ..dialects.pins import PIN
from ..dialects.pipe import SCHEDULE, TransferOp
from ..dialects.sharding_attrs import SignatureAttr
from ..dialects.staged import Stages
from ..dialects.step import WORKING
from ..ir.cluster import Cluster
from ..ir.mesh import Mesh
from ..ir.signatures import choices_of, signature
from .analysis.compute import op_seconds
from .errors import fail
from .step.step_view import StepView, step_functions, step_views

SPLIT = frozenset(
    {
        "convolution_backward",
        "native_layer_norm_backward",
        "native_group_norm_backward",
        "grouped_mm_backward",
        "grouped_bmm_backward",
    }
)
"""The ops whose first result is the gradient of the input, and the others weight gradients, by `output_mask`."""

_MASK = "output_mask"


@dataclass(frozen=True)
class SplitBackwardPass(ModulePass):
    """
    Compute the gradients of an op's input and of its weights separately, if only the gradient of the input is waited
    for.

    An op that computes both delays the previous stage, because its gradient is sent only after the weight gradients are
    computed too. Separate weight gradients can wait (`schedule-pipeline`). A convolution and the products of experts
    compute the two separately anyway. A layer norm reads its operands once for both, so two ops are mostly slower, and
    it stays one op.

    Requires: signatures (`search-strategy`) and a cluster for each stage; run it before `schedule-pipeline`.
    Ensures: `convolution_backward`, `native_layer_norm_backward`, `native_group_norm_backward`, `grouped_mm_backward`
    and `grouped_bmm_backward` compute one kind of gradient only, if a transfer depends on the gradient of the input and
    not on the others, and the two ops together take at most `slowdown` longer by cost.

    Before:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #w = #spmd.sharding<@stage1, [{}, {}, {}, {}]>
    #sig = #spmd.sig<@stage1, ([{}, {}, {}, {}], [{}, {}, {}, {}], [{}, {}, {}, {}])
      -> ([{}, {}, {}, {}], [{}, {}, {}, {}], [{}])>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    spmd.mesh @stage0 = <["gpu"=1]> on [0]
    spmd.mesh @stage1 = <["gpu"=1]> on [1]
    spmd.cluster @two.stage0 on @stage0 devices [#cpu] placement [0] links [#link]
    spmd.cluster @two.stage1 on @stage1 devices [#cpu] placement [0] links [#link]
    func.func @step(%g: tensor<2x4x6x6xf32> {pipe.stage = 1 : i64, spmd.sharding = #w},
        %x: tensor<2x4x8x8xf32> {pipe.stage = 1 : i64, spmd.sharding = #w},
        %w: tensor<4x4x3x3xf32> {pipe.stage = 1 : i64, spmd.sharding = #w})
        -> (tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) attributes {pipe.stages = ["stage0", "stage1"]} {
      %dx, %dw, %db = aten.convolution_backward %g, %x, %w {bias_sizes = [4], stride = [1, 1], padding = [0, 0],
        dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64,
        output_mask = [true, true, true], train.backward, pipe.stage = 1 : i64, spmd.signature = #sig}
        : (tensor<2x4x6x6xf32>, tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>)
        -> (tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>)
      %dx.at0 = pipe.transfer "dx.at0" %dx to @stage0 out_sharding = <@stage0, [{}, {}, {}, {}]> : tensor<2x4x8x8xf32>
      func.return %dx.at0, %dw, %db : tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>
    }
    ```

    After:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #w = #spmd.sharding<@stage1, [{}, {}, {}, {}]>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    spmd.mesh @stage0 = <["gpu"=1]> on [0]
    spmd.mesh @stage1 = <["gpu"=1]> on [1]
    spmd.cluster @two.stage0 on @stage0 devices [#cpu] placement [0] links [#link]
    spmd.cluster @two.stage1 on @stage1 devices [#cpu] placement [0] links [#link]
    func.func @step(%g: tensor<2x4x6x6xf32> {pipe.stage = 1 : i64, spmd.sharding = #w},
        %x: tensor<2x4x8x8xf32> {pipe.stage = 1 : i64, spmd.sharding = #w},
        %w: tensor<4x4x3x3xf32> {pipe.stage = 1 : i64, spmd.sharding = #w})
        -> (tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) attributes {pipe.stages = ["stage0", "stage1"]} {
      %dx, %dx.none, %dx.none_1 = aten.convolution_backward %g, %x, %w {bias_sizes = [4], stride = [1, 1],
        padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64,
        output_mask = [true, false, false], train.backward, pipe.stage = 1 : i64,
        spmd.signature = #spmd.sig<@stage1, ([{}, {}, {}, {}], [{}, {}, {}, {}], [{}, {}, {}, {}])
          -> ([{}, {}, {}, {}], [], [])>}
        : (tensor<2x4x6x6xf32>, tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>)
        -> (tensor<2x4x8x8xf32>, tensor<f32>, tensor<f32>)
      %dx.none_2, %dw, %db = aten.convolution_backward %g, %x, %w {bias_sizes = [4], stride = [1, 1],
        padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64,
        output_mask = [false, true, true], train.backward, pipe.stage = 1 : i64,
        spmd.signature = #spmd.sig<@stage1, ([{}, {}, {}, {}], [{}, {}, {}, {}], [{}, {}, {}, {}])
          -> ([], [{}, {}, {}, {}], [{}])>}
        : (tensor<2x4x6x6xf32>, tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>)
        -> (tensor<f32>, tensor<4x4x3x3xf32>, tensor<4xf32>)
      %dx.at0 = pipe.transfer "dx.at0" %dx to @stage0 out_sharding = <@stage0, [{}, {}, {}, {}]> : tensor<2x4x8x8xf32>
      func.return %dx.at0, %dw, %db : tensor<2x4x8x8xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>
    }
    ```

    Source: Zero Bubble Pipeline Parallelism (Qi et al. 2023), 2: B and W are computed separately.
    """

    name = "split-backward"

    slowdown: int | float = 0.05
    """Largest extra time of the two ops together, as a fraction of the time of the one op."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Split the ops of every stage of the module that sends gradients."""
        for func in step_functions(op):
            if SCHEDULE in func.attributes:
                fail(func, "has a schedule already; run split-backward before schedule-pipeline")
        awaited = {func: _awaited(func) for func in step_functions(op) if Stages(func).names}
        for view, cluster in step_views(op):
            for compute in view.ops if view.func in awaited else ():
                if isinstance(compute, AtenOp) and _is_both(compute) and _is_held_up(compute, awaited[view.func]):
                    self._split(compute, view, cluster)

    def _split(self, op: AtenOp, view: StepView, cluster: Cluster) -> None:
        """Replace one op by two, unless they would be slower."""
        signed = op.attributes.get(SIGNATURE)
        if not isinstance(signed, SignatureAttr):
            fail(op, "has no signature; run search-strategy before split-backward")
        mask = _asked_for(op)
        of_input = [asked and index == 0 for index, asked in enumerate(mask)]
        of_weights = [asked and index > 0 for index, asked in enumerate(mask)]
        halves = [_half(op, signed.data.mesh, view.mesh, results) for results in (of_input, of_weights)]
        seconds = [op_seconds(half, half.signature, cluster) for half in halves if half.signature is not None]
        most = (1.0 + self.slowdown) * op_seconds(op, signed.signature, cluster)
        if len(seconds) < len(halves) or sum(seconds) > most:
            for half in halves:
                half.erase()
            return
        block = op.parent_block()
        assert block is not None, "ops of a step are in its block"
        block.insert_ops_before(halves, op)
        for index, result in enumerate(op.outs):
            half = halves[min(index, 1)]
            half.outs[index].name_hint = result.name_hint
            result.replace_all_uses_with(half.outs[index])
        op.detach()
        op.erase()


def _awaited(func: FuncOp) -> frozenset[Operation]:
    """Return the transfers, and the ops that they depend on."""
    awaited, pending = set[Operation](), [op for op in func.body.block.ops if isinstance(op, TransferOp)]
    waiting: list[Operation] = list(pending)
    while waiting:
        op = waiting.pop()
        if op not in awaited:
            awaited.add(op)
            waiting += (value.op for value in op.operands if isinstance(value, OpResult))
    return frozenset(awaited)


def _is_both(op: AtenOp) -> bool:
    if op.overload not in SPLIT:
        return False
    mask = _asked_for(op)
    return mask[0] and any(mask[1:])


def _asked_for(op: AtenOp) -> list[bool]:
    """Return which results the op computes; by default all."""
    return [bool(entry) for entry in op.arguments().get(_MASK, [True] * len(op.outs))]


def _is_held_up(op: AtenOp, awaited: frozenset[Operation]) -> bool:
    """Return whether another stage waits for the gradient of the input alone."""

    def is_awaited(results: Iterable[OpResult]) -> bool:
        return any(use.operation in awaited for result in results for use in result.uses)

    first, *others = op.results
    return is_awaited([first]) and not is_awaited(others)


def _half(op: AtenOp, name: str, mesh: Mesh, mask: list[bool]) -> AtenOp:
    """
    Return an op with only the results in `mask`; the others are placeholders without dims.

    It has the shardings of `op`, or no signature if its rule does not allow them.

    Args:
        name: the name of `mesh`.
    """
    element, given = op.outs[0].type, op.signature
    assert isinstance(element, TensorType)
    assert given is not None, "`_split` refuses an op without a signature"
    none = TensorType(element.element_type, [])
    types = [value.type if asked else none for value, asked in zip(op.outs, mask, strict=True)]
    hint = f"{op.outs[0].name_hint or 'grad'}.none"
    # Pins have been obeyed already.
    attributes = {key: value for key, value in op.attributes.items() if key != PIN} | {_MASK: plain_attribute(mask)}
    if (working := entries_of(op.attributes.get(WORKING))) is not None:
        # A placeholder has no dims that a working placement could split.
        working_of_half = [sharding if asked else UnitAttr() for sharding, asked in zip(working, mask, strict=True)]
        attributes[WORKING] = ArrayAttr(working_of_half)
    half = type(op)(operands=[op.args], result_types=[types], attributes=attributes)
    half.location = op.location
    for value in half.outs:
        value.name_hint = hint
    chosen, offsets = choices_of(op.rule(), given, mesh)
    signed = signature(half.rule(), mesh, chosen, offsets)
    if signed is None or signed.operands != given.operands:
        half.attributes.pop(SIGNATURE)
    else:
        half.attributes[SIGNATURE] = SignatureAttr.of(name, signed)
    return half
