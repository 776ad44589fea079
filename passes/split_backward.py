"""Split the ops of backward that compute two gradients, so that a pipeline can delay gradients of weights."""

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
"""Ops whose first result is the gradient of the input, the others those of weights; `output_mask` asks for each."""

_MASK = "output_mask"


@dataclass(frozen=True)
class SplitBackwardPass(ModulePass):
    """
    Compute the gradients of an op's input and of its weights apart, where only the former are waited for.

    An op that gives both holds up the stage before: its gradient is sent when those of weights are there too. Apart
    from the input's they can wait (`schedule-pipeline`). A convolution and the products of experts compute the two by
    themselves anyway; a layer norm, which reads its operands once for both, is mostly slower in two, and stays one.

    Requires: signatures (`search-strategy`) and a cluster for each stage; run it before `schedule-pipeline`.
    Ensures: `convolution_backward`, `native_layer_norm_backward`, `native_group_norm_backward`, `grouped_mm_backward`
    and `grouped_bmm_backward` give either kind of gradient alone, where a transfer depends on that of the input and on
    none of the others, and the two ops together take at most `slowdown` longer, by cost.

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

    Source: Zero Bubble Pipeline Parallelism (Qi et al. 2023), 2: B and W are computed apart.
    """

    name = "split-backward"

    slowdown: int | float = 0.05
    """How much longer than the one op the two may take together, as a fraction of its time."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Split the ops of every stage of the module that sends gradients on."""
        for func in step_functions(op):
            if SCHEDULE in func.attributes:
                fail(func, "has a schedule already; run split-backward before schedule-pipeline")
        awaited = {func: _awaited(func) for func in step_functions(op) if Stages(func).names}
        for view, cluster in step_views(op):
            for each in view.ops if view.func in awaited else ():
                if isinstance(each, AtenOp) and _is_both(each) and _is_held_up(each, awaited[view.func]):
                    self._split(each, view, cluster)

    def _split(self, op: AtenOp, view: StepView, cluster: Cluster) -> None:
        """Put two ops in the place of one, unless they would be slower."""
        given = op.attributes.get(SIGNATURE)
        if not isinstance(given, SignatureAttr):
            fail(op, "has no signature; run search-strategy before split-backward")
        mask = _asked_for(op)
        of_input = [asked and index == 0 for index, asked in enumerate(mask)]
        of_weights = [asked and index > 0 for index, asked in enumerate(mask)]
        halves = [_half(op, given.data.mesh, view.mesh, each) for each in (of_input, of_weights)]
        seconds = [op_seconds(half, half.signature, cluster) for half in halves if half.signature is not None]
        most = (1.0 + self.slowdown) * op_seconds(op, given.signature, cluster)
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
    """What some transfer depends on, and the transfers."""
    found, pending = set[Operation](), [op for op in func.body.block.ops if isinstance(op, TransferOp)]
    waiting: list[Operation] = list(pending)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += (value.op for value in op.operands if isinstance(value, OpResult))
    return frozenset(found)


def _is_both(op: AtenOp) -> bool:
    """Whether an op gives gradients of its input and of weights."""
    if op.overload not in SPLIT:
        return False
    mask = _asked_for(op)
    return mask[0] and any(mask[1:])


def _asked_for(op: AtenOp) -> list[bool]:
    """Which results the op computes: all by default."""
    return [bool(each) for each in op.arguments().get(_MASK, [True] * len(op.outs))]


def _is_held_up(op: AtenOp, awaited: frozenset[Operation]) -> bool:
    """Whether the gradient of the input alone is waited for by another stage."""

    def is_awaited(results: Iterable[OpResult]) -> bool:
        return any(use.operation in awaited for result in results for use in result.uses)

    first, *others = op.results
    return is_awaited([first]) and not is_awaited(others)


def _half(op: AtenOp, name: str, mesh: Mesh, mask: list[bool]) -> AtenOp:
    """
    The op that gives those results alone that `mask` asks for; the others are placeholders without dims.

    It has the shardings that `op` has; where its rule does not allow them, it has no signature.

    Args:
        name: the name of `mesh`.
    """
    element, given = op.outs[0].type, op.signature
    assert isinstance(element, TensorType)
    assert given is not None, "`_split` refuses an op without a signature"
    none = TensorType(element.element_type, [])
    types = [value.type if asked else none for value, asked in zip(op.outs, mask, strict=True)]
    hint = f"{op.outs[0].name_hint or 'grad'}.none"
    # What is pinned has been decided.
    attributes = {key: value for key, value in op.attributes.items() if key != PIN} | {_MASK: plain_attribute(mask)}
    if (working := entries_of(op.attributes.get(WORKING))) is not None:
        # A placeholder has no dims that a working placement could split.
        kept = [each if asked else UnitAttr() for each, asked in zip(working, mask, strict=True)]
        attributes[WORKING] = ArrayAttr(kept)
    half = type(op)(operands=[op.args], result_types=[types], attributes=attributes)
    half.location = op.location
    for value in half.outs:
        value.name_hint = hint
    chosen, offsets = choices_of(op.rule(), given, mesh)
    found = signature(half.rule(), mesh, chosen, offsets)
    if found is None or found.operands != given.operands:
        half.attributes.pop(SIGNATURE)
    else:
        half.attributes[SIGNATURE] = SignatureAttr.of(name, found)
    return half
