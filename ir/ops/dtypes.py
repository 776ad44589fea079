"""
The dtypes of ops' results: torch's type promotion as a table.

Dtypes have torch's names. A result whose dtype depends on the device or the kernel (statistics of narrow values) has no
rule here and is never checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

from ..plain import Plain, PlainTable
from .table import op_table

DEFAULTS = ("float32", "float64")
"""The dtypes in which torch creates floats by default: its own default, and the other one that a user may set."""

_CATEGORIES = (
    ("bool",),
    ("uint8", "int8", "int16", "int32", "int64"),
    ("float16", "bfloat16", "float32", "float64"),
    ("complex64", "complex128"),
)
"""All dtypes by category, in ascending order of precedence: by category, then by width within a category."""

_ORDER = {dtype: at for at, dtype in enumerate(each for category in _CATEGORIES for each in category)}
_CATEGORY = {dtype: at for at, category in enumerate(_CATEGORIES) for dtype in category}
_FLOAT = 2

_NEITHER = {
    frozenset({"uint8", "int8"}): "int16",
    frozenset({"float16", "bfloat16"}): "float32",
    frozenset({"float64", "complex64"}): "complex128",
}
"""Pairs that promote to a third dtype."""


_REAL = {"complex64": "float32", "complex128": "float64"}


class TypedOperand(NamedTuple):
    """A tensor operand: the name of its argument, its dtype and whether it has dims."""

    name: str
    dtype: str
    has_dims: bool = True


def promoted(operands: Iterable[TypedOperand], numbers: Iterable[Plain] = (), default: str = DEFAULTS[0]) -> str:
    """Return the promoted dtype of tensors and numbers; tensors without dims and numbers only raise the category."""
    by_rank: tuple[list[str], list[str], list[str]] = ([], [], [])
    for operand in operands:
        by_rank[0 if operand.has_dims else 1].append(operand.dtype)
    for number in numbers:
        by_rank[2].append("bool" if isinstance(number, bool) else "int64" if isinstance(number, int) else default)
    dims, scalars, plain = (reduce(_wider, dtypes, "") for dtypes in by_rank)
    return _over(dims, _over(scalars, plain))


def _wider(one: str, other: str) -> str:
    """Promote two dtypes of one rank."""
    if not one or not other:
        return one or other
    return _NEITHER.get(frozenset({one, other})) or max(one, other, key=_ORDER.__getitem__)


def _over(one: str, lower: str) -> str:
    """Promote a dtype with one of a lower rank, which only raises the category."""
    if one and lower and _CATEGORY[one] >= _CATEGORY[lower]:
        return one
    return _wider(one, "complex64" if one and lower and _CATEGORY[one] == _FLOAT else lower)


def result_dtypes(
    name: str, operands: Sequence[TypedOperand], arguments: PlainTable, results: int, default: str = DEFAULTS[0]
) -> tuple[str | None, ...]:
    """
    Return the dtypes of an op's results, with None for a result without a rule.

    Args:
        name: name of a row of the op table.
        arguments: arguments other than the tensor operands, as plain values.
        default: torch's default dtype of floats.

    Raises:
        ValueError: the op requires operands of one dtype, and they differ.
    """
    rule = _rule(name)
    if any(operand.dtype not in _ORDER for operand in operands):
        return (None,) * results
    if rule[0] == "alike" and len({operand.dtype for operand in operands}) > 1:
        raise ValueError(f"takes operands of one dtype, found {', '.join(f'{o.name} of {o.dtype}' for o in operands)}")
    mask, last = arguments.get("output_mask"), len(rule) - 1
    # A result that is not asked for is a placeholder.
    unasked = {at for at, asked in enumerate(mask) if not asked} if isinstance(mask, Sequence) else ()
    words = ("?" if at in unasked else rule[min(at, last)] for at in range(results))
    return tuple(_dtype(word, operands, arguments, default) for word in words)


_ASIDE = frozenset({"condition", "mask", "seed"})
"""Operands that choose elements and are ignored by promotion."""

_NUMBERS = ("self", "other", "min", "max", "exponent", "fill_value", "start", "end", "step")
"""Arguments that promote where they are numbers."""


def _dtype(word: str, operands: Sequence[TypedOperand], arguments: PlainTable, default: str) -> str | None:
    """Return the dtype that a word of a rule stands for, or None if it is unknown."""
    if word in _ORDER or word == "?":
        return word if word in _ORDER else None
    first, dtype = operands[0].dtype if operands else default, arguments.get("dtype")
    if isinstance(dtype, str) or arguments.get("input_dtype", first) != first:
        return None if dtype not in _ORDER else _REAL.get(str(dtype), str(dtype)) if word == "real" else str(dtype)
    match word:
        case "first" | "alike":
            return "float32" if arguments.get("half_to_float") else first
        case "promote" | "float" | "divided":
            numbers = [arguments[name] for name in _NUMBERS if name in arguments]
            promoted_dtype = promoted((operand for operand in operands if operand.name not in _ASIDE), numbers, default)
            whole = word == "promote" or arguments.get("rounding_mode") is not None
            return promoted_dtype if whole or _CATEGORY[promoted_dtype] >= _FLOAT else default
        case "default":
            return default
        case "sum":
            return first if _CATEGORY[first] >= _FLOAT else "int64"
        case "any":
            return "uint8" if first == "uint8" else "bool"
        case "index":
            return "int32" if arguments.get("out_int32") else "int64"
        case "real":
            return _REAL.get(first, first)
        case "complex":
            return next((complex_dtype for complex_dtype, real in _REAL.items() if real == first), None)
        case _:
            return next((operand.dtype for operand in operands if operand.name == word), None)


_BY_FAMILY = {"elementwise": "promote", "contractions": "alike", "factories": "default", "losses": "self"}
"""The rule of each family's ops that `_BY_NAME` does not list; `first` for all other families."""

_BY_NAME: Mapping[str, str] = {
    "promote": "cat stack linalg_cross addr mse_loss smooth_l1_loss huber_loss_backward full arange",
    "float": """
        reciprocal sqrt rsqrt sigmoid exp exp2 expm1 log log2 log10 log1p sin cos erf erfc logit tan asin acos atan sinh
        cosh tanh asinh acosh atanh sinc erfinv lgamma digamma mvlgamma polygamma i0 special_entr special_i0e special_i1
        special_i1e special_erfcx special_log_ndtr special_ndtri special_bessel_j0 special_bessel_j1 rad2deg deg2rad
        xlogy div copysign atan2 special_xlog1py special_zeta logsumexp hypot logaddexp logaddexp2 igamma igammac ldexp
        native_dropout_backward
    """,
    "divided": "div.Scalar_mode div.Tensor_mode",
    "bool": """
        logical_not isnan isinf isfinite isposinf isneginf signbit logical_and logical_or logical_xor eq ne lt le gt ge
        isin
    """,
    "sum": "sum nansum prod cumsum cumprod trace",
    "real": "abs var std linalg_vector_norm norm _fft_c2r view_as_real",
    "complex": "_fft_r2c view_as_complex polar complex",
    "any": "any all",
    "index": "bucketize searchsorted",
    "int64": "argmax argmin argsort count_nonzero tril_indices triu_indices",
    "first": """
        new_zeros new_ones new_full new_empty new_empty_strided sum_exp nll_loss_forward nll_loss2d_forward full_like
        copy fill masked_fill
    """,
    "first int64": """
        cummax cummin sort max.dim min.dim median.dim nanmedian.dim kthvalue mode topk max_pool2d_with_indices
        max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d
    """,
    "first int32": "frexp linalg_inv_ex linalg_cholesky_ex linalg_lu_factor_ex",
    "first first int32": "_linalg_solve_ex",
    "real first": "var_mean std_mean _linalg_eigh",
    "first real first": "_linalg_svd",
    "float bool": "random_dropout",
    "first ?": """
        native_layer_norm native_group_norm _native_batch_norm_legit_functional _native_batch_norm_legit
        _native_batch_norm_legit_no_training _weight_norm_interface convolution_backward attention
    """,
    "input ?": "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward",
    "query": "attention_backward",
    "rows": "grouped_mm grouped_bmm",
    "rows matrices": "grouped_mm_backward grouped_bmm_backward",
    "scores": "cross_entropy_backward",
    "?": """
        angle dist mish_backward binary_cross_entropy_with_logits _weight_norm_interface_backward _ctc_loss
        _ctc_loss_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_backward
        _embedding_bag_dense_backward
    """,
}
"""
Maps rules to the ops that have them. A rule lists a word per result; its last word also covers all further results. A
name without its overload stands for all overloads that no other rule lists.

A word is a dtype, the name of an operand, or `?` for an unknown dtype. `first` is the dtype of the first operand, and
so is `alike`, for ops that require operands of one dtype. `promote` promotes operands and numbers; `float` does too,
and turns whole numbers into floats. `sum` is the dtype of sums, `any` of tests for true elements, `index` of indices;
`default` is torch's default dtype of floats. An argument `dtype` overrides the word.
"""


@lru_cache(maxsize=1024)
def _rule(name: str) -> Sequence[str]:
    rule = _RULES.get(name) or _RULES.get(name.partition(".")[0])
    return rule or [_BY_FAMILY.get(op_table()[name].family, "first")]


_RULES = {name: rule.split() for rule, names in _BY_NAME.items() for name in names.split()}
