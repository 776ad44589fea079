"""
The op table: one row per ATen overload. A new op needs its row here and nothing else.

Names are ATen's without `.default`; `attention` and `attention_backward` are the fused attention ops that
import normalises every backend's variants to; `train.*` are the fused updates of one parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..rules import Rule, replicated_rule
from ..sharding import Reduction
from . import families as f
from .spec import OpInstance, OpSpec, RuleFunction

_SUM, _MAX, _MIN = Reduction.SUM, Reduction.MAX, Reduction.MIN
_SIZE = {"size": "result0"}


def _rows(
    names: str,
    operands: str,
    rule: str | RuleFunction = f.pointwise,
    *,
    linear: str = "",
    flops: str = "",
    localize: dict[str, str] | None = None,
    view: bool = False,
    results: int = 1,
) -> Iterator[OpSpec]:
    """One row per name; operands and linear sets are given as words."""
    for name in names.split():
        yield OpSpec(
            name, tuple(operands.split()), rule, tuple(linear.split()), flops, localize, view, results
        )


def _elementwise() -> Iterator[OpSpec]:
    """Element by element."""
    yield from _rows("add.Tensor sub.Tensor", "self other", linear="self+other")
    yield from _rows("add.Scalar sub.Scalar rsub.Scalar fmod.Scalar remainder.Scalar", "self")
    yield from _rows("pow.Scalar", "exponent")
    yield from _rows("pow.Tensor_Tensor", "self exponent")
    yield from _rows("mul.Tensor", "self other", linear="self other")
    yield from _rows("mul.Scalar div.Scalar neg", "self", linear="self")
    yield from _rows("div.Tensor", "self other", linear="self")
    yield from _rows("where.self", "condition self other", linear="self+other")
    yield from _rows("masked_fill.Scalar", "self mask")
    yield from _rows("minimum maximum floor_divide div.Tensor_mode atan2", "self other")
    yield from _rows("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", "self other")
    yield from _rows("logical_and logical_or logical_xor bitwise_and.Tensor bitwise_or.Tensor", "self other")
    yield from _rows("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", "self")
    yield from _rows(
        "exp log log1p expm1 sqrt rsqrt reciprocal sin cos tanh sigmoid relu silu gelu erf abs sign", "self"
    )
    yield from _rows(
        "floor ceil round logical_not bitwise_not isnan isinf softplus hardtanh leaky_relu elu", "self"
    )
    yield from _rows("pow.Tensor_Scalar clamp clamp_min clamp_max", "self")
    yield from _rows("sigmoid_backward tanh_backward", "grad_output output", linear="grad_output")
    yield from _rows("gelu_backward silu_backward", "grad_output self", linear="grad_output")
    yield from _rows("threshold_backward", "grad_output self", linear="grad_output")
    yield from _rows(
        "hardtanh_backward softplus_backward leaky_relu_backward", "grad_output self", linear="grad_output"
    )
    yield from _rows("clone _to_copy", "self", linear="self")
    yield from _rows("detach alias", "self", linear="self", view=True)
    yield from _rows("zeros_like ones_like full_like empty_like", "self")


def _along_dims() -> Iterator[OpSpec]:
    """Along a dim, and reductions."""
    yield from _rows("_softmax _log_softmax _safe_softmax", "self", f.along("dim"))
    yield from _rows(
        "_softmax_backward_data _log_softmax_backward_data",
        "grad_output output",
        f.along("dim"),
        linear="grad_output",
    )
    yield from _rows("cumsum", "self", f.along("dim"), linear="self")
    yield from _rows("flip", "self", f.along("dims"), linear="self")
    yield from _rows("tril triu", "self", f.triangle, linear="self")
    yield from _rows("sum.dim_IntList sum", "self", f.reduction(_SUM), linear="self")
    yield from _rows("mean.dim mean", "self", f.reduction(None), linear="self")
    yield from _rows("amax", "self", f.reduction(_MAX))
    yield from _rows("amin", "self", f.reduction(_MIN))
    yield from _rows("argmax argmin any.dim all.dim var.correction", "self", f.reduction(None))
    yield from _rows("max.dim min.dim", "self", f.reduction(None, results=2), results=2)


def _factories() -> Iterator[OpSpec]:
    """Tensors made from arguments alone."""
    yield from _rows("full zeros ones empty.memory_format", "", f.factory, localize=_SIZE)
    yield from _rows("scalar_tensor", "", f.factory)
    yield from _rows("new_zeros new_ones new_empty new_full", "self", _like_nothing, localize=_SIZE)
    # What a sequence counts depends on where it starts: it stays whole.
    yield from _rows("arange.start_step arange.start arange", "", _whole)


def _views() -> Iterator[OpSpec]:
    """Views and parts of a dim."""
    yield from _rows("view _unsafe_view", "self", f.reshape, linear="self", localize=_SIZE, view=True)
    yield from _rows("reshape", "self", f.reshape, linear="self", localize={"shape": "result0"}, view=True)
    yield from _rows("permute", "self", f.permuted(f.permutation), linear="self", view=True)
    yield from _rows("t transpose.int", "self", f.permuted(f.swap), linear="self", view=True)
    yield from _rows("expand", "self", f.expand, linear="self", localize=_SIZE, view=True)
    yield from _rows("unsqueeze", "self", f.unsqueeze, linear="self", view=True)
    # Run as a reshape to the local size: a rank may have one element of a dim that is not of size 1.
    yield from _rows(
        "squeeze squeeze.dim squeeze.dims", "self", f.squeeze, linear="self", localize=_SIZE, view=True
    )
    yield from _rows("slice.Tensor", "self", f.cut(), linear="self", view=True)
    yield from _rows("select.int", "self", f.cut(drop=True), linear="self", view=True)
    yield from _rows("split.Tensor chunk", "self", f.cut(), linear="self", view=True, results=0)
    yield from _rows("split_with_sizes", "self", f.cut(sized=True), linear="self", view=True, results=0)
    yield from _rows("unbind.int", "self", f.cut(drop=True), linear="self", view=True, results=0)
    yield from _rows(
        "slice_backward", "grad_output", f.uncut(), linear="grad_output", localize={"input_sizes": "result0"}
    )
    yield from _rows(
        "select_backward",
        "grad_output",
        f.uncut(dropped=True),
        linear="grad_output",
        localize={"input_sizes": "result0"},
    )
    yield from _rows("cat", "*tensors", f.joined, linear="*")
    yield from _rows("stack", "*tensors", f.stacked, linear="*")
    yield from _rows("constant_pad_nd", "self", f.padded)
    yield from _rows("gather", "self index", f.picked, linear="self")
    yield from _rows("scatter.value", "self index", f.picked)


def _contractions() -> Iterator[OpSpec]:
    """Products of matrices, embeddings and attention."""
    yield from _rows(
        "mm", "self mat2", "([i, k], [k, j]) -> ([i, j]) reduction={k}", linear="self mat2", flops="2*i*j*k"
    )
    yield from _rows("addmm", "self mat1 mat2", f.addmm, linear="self+mat1 self+mat2", flops="2*i*j*k")
    yield from _rows(
        "bmm",
        "self mat2",
        "([b, i, k], [b, k, j]) -> ([b, i, j]) reduction={k}",
        linear="self mat2",
        flops="2*b*i*j*k",
    )
    yield from _rows(
        "baddbmm", "self batch1 batch2", f.baddbmm, linear="self+batch1 self+batch2", flops="2*b*i*j*k"
    )
    yield from _rows(
        "mv", "self vec", "([i, k], [k]) -> ([i]) reduction={k}", linear="self vec", flops="2*i*k"
    )
    yield from _rows(
        "dot", "self tensor", "([k], [k]) -> ([]) reduction={k}", linear="self tensor", flops="2*k"
    )
    yield from _rows("embedding", "weight indices", f.embedding, linear="weight")
    yield from _rows(
        "embedding_dense_backward", "grad_output indices", f.embedding_backward, linear="grad_output"
    )
    yield from _rows("attention", "query key value attn_mask", f.attention, flops="4*b*h*s*t*e", results=2)
    yield from _rows(
        "attention_backward",
        "grad_out query key value out logsumexp attn_mask",
        f.attention_backward,
        linear="grad_out",
        flops="10*b*h*s*t*e",
        results=3,
    )


def _layers() -> Iterator[OpSpec]:
    """Normalisations, windows and losses."""
    yield from _rows("native_layer_norm", "input weight bias", f.layer_norm, results=3)
    yield from _rows(
        "native_layer_norm_backward",
        "grad_out input mean rstd weight bias",
        f.layer_norm_backward,
        linear="grad_out",
        results=3,
    )
    yield from _rows(
        "_native_batch_norm_legit_functional",
        "input weight bias running_mean running_var",
        f.batch_norm,
        results=5,
    )
    yield from _rows(
        "native_batch_norm_backward",
        "grad_out input weight running_mean running_var save_mean save_invstd",
        f.batch_norm,
        linear="grad_out",
        results=3,
    )
    yield from _rows(
        "convolution",
        "input weight bias",
        f.convolution,
        linear="input+bias weight+bias",
        flops="2*n*i*o*k0*k1*y0*y1",
    )
    yield from _rows(
        "convolution_backward",
        "grad_output input weight",
        f.convolution_backward,
        linear="grad_output",
        flops="4*n*i*o*k0*k1*y0*y1",
        localize={"bias_sizes": "result2"},
        results=3,
    )
    yield from _rows("max_pool2d_with_indices", "self", f.pooling, results=2)
    yield from _rows(
        "max_pool2d_with_indices_backward", "grad_output self indices", f.pooling, linear="grad_output"
    )
    yield from _rows("avg_pool2d _adaptive_avg_pool2d", "self", f.pooling, linear="self")
    yield from _rows(
        "avg_pool2d_backward _adaptive_avg_pool2d_backward",
        "grad_output self",
        f.pooling,
        linear="grad_output",
    )
    yield from _rows("nll_loss_forward", "self target weight", f.nll_loss, results=2)
    yield from _rows(
        "nll_loss_backward",
        "grad_output self target weight total_weight",
        f.nll_loss_backward,
        linear="grad_output",
    )


def _like_nothing(op: OpInstance) -> Rule:
    """`new_*`: the operand gives only its dtype."""
    made = f.factory(op)
    blank = replicated_rule(op.operands, ())
    return Rule(blank.operands, made.results, {**blank.sizes, **made.sizes}, replicated=blank.replicated)


def _whole(op: OpInstance) -> Rule:
    return replicated_rule(op.operands, op.results)


_ROWS = (_elementwise, _along_dims, _factories, _views, _contractions, _layers)


@lru_cache(maxsize=1)
def op_table() -> dict[str, OpSpec]:
    """All rows by name."""
    return {spec.name: spec for rows in _ROWS for spec in rows()}


def update_rule(op: OpInstance) -> Rule:
    """
    The rule of a fused optimizer update: every tensor is spread like the parameter; scalars are replicated.
    """
    value, sizes = f.named(op.results[0])
    operands = tuple(value if shape == op.results[0] else () for shape in op.operands)
    results = tuple(value if shape == op.results[0] else () for shape in op.results)
    return Rule(operands, results, sizes)


def rule_of(op: OpInstance) -> Rule:
    """The sharding rule of `op`; an overload without a row runs replicated."""
    spec = op_table().get(op.name)
    return spec.bind(op) if spec is not None else replicated_rule(op.operands, op.results)
