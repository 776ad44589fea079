"""The ops of every family that a profile measures to fit rates, each in a series of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import Template

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func

from ...dialects.aten import ATEN
from ...dialects.compute import ComputeOp
from ...dialects.text import parse_module
from ...dialects.train import TRAIN
from ...ir.mesh import Mesh
from ...ir.op_cost import COPY
from ...runtime.profile.samples import OpSample
from .op_samples import sample_of, work_of

_ONE_RANK = Mesh.of(rank=1)
_ELEMENT_TYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True)
class _Series:
    """
    An op at several sizes.

    Args:
        op: the name of the op with its attributes; `$f` is the floating-point type.
        types: operands and results as shapes such as `${m}x512`, with sizes by letter; `:i64<9` marks integers below 9.
        sizes: one dict per member, ascending.
        family: the family whose rate it measures, if it is not the op's own.
    """

    op: str
    types: str
    sizes: tuple[dict[str, int], ...]
    family: str = ""


def _rising(**values: int | Sequence[int]) -> tuple[dict[str, int], ...]:
    """Return sizes by letter, one dict per member: the i-th value of each sequence, and each constant."""
    count = max(len(value) for value in values.values() if not isinstance(value, int))
    return tuple({k: v if isinstance(v, int) else v[i] for k, v in values.items()} for i in range(count))


_NUMBERS = tuple(4**i for i in range(4, 13))
"""256 to 16 Mi elements: from tensors that fit in the L1 cache to tensors larger than all caches."""

_EVERY_OTHER = _NUMBERS[::2]
_ROWS = (4, 16, 64, 256, 1024, 4096, 16384)
_HEADS = _rising(b=(1, 2, 4, 8, 16), s=(16, 32, 64, 128, 256), d=(16, 32, 32, 64, 64))
_IMAGES = _rising(b=(1, 2, 4, 8, 16), c=(8, 16, 32, 64, 64), w=(8, 16, 16, 32, 32))
_WINDOW = (
    "stride = [1, 1], padding = [1, 1], dilation = [1, 1], transposed = false, output_padding = [0, 0],"
    " groups = 1 : i64"
)
_CAUSAL = '{is_causal = true, absent = ["attn_mask"]}'
_HEAD = "${b}x4x${s}x$d"
_ADAMW = "{beta1 = 0.9 : f64, beta2 = 0.999 : f64, eps = 1.0e-8 : f64, weight_decay = 0.01 : f64}"

_SERIES = (
    _Series("mm", "${n}x$n, ${n}x$n -> ${n}x$n", _rising(n=(16, 32, 64, 128, 256, 512, 1024, 2048))),
    _Series("mm", "${m}x64, 64x64 -> ${m}x64", _rising(m=(64, 512, 4096))),
    _Series("mm", "64x$k, ${k}x64 -> 64x64", _rising(k=(256, 1024, 8192))),
    _Series("mm", "${m}x1024, 1024x1024 -> ${m}x1024", _rising(m=(4, 32, 128))),
    _Series("addmm", "$n, ${m}x256, 256x$n -> ${m}x$n", _rising(m=(8, 64, 512, 2048), n=(256, 256, 1024, 1024))),
    _Series("bmm", "${b}x${n}x$n, ${b}x${n}x$n -> ${b}x${n}x$n", _rising(b=(4, 16, 64, 64), n=(16, 32, 64, 128))),
    _Series("add.Tensor", "$n, $n -> $n", _rising(n=_NUMBERS)),
    _Series("mul.Tensor", "$n, $n -> $n", _rising(n=_NUMBERS[1::2])),
    _Series("relu", "$n -> $n", _rising(n=_EVERY_OTHER)),
    _Series("threshold_backward {threshold = 0 : i64}", "$n, $n -> $n", _rising(n=_NUMBERS[1::2])),
    _Series("gelu", "$n -> $n", _rising(n=_EVERY_OTHER)),
    _Series("gelu_backward", "$n, $n -> $n", _rising(n=_NUMBERS[1::2])),
    _Series('gelu {approximate = "tanh"}', "$n -> $n", _rising(n=_NUMBERS[2:7:2])),
    _Series("exp", "$n -> $n", _rising(n=_NUMBERS[2:7:2])),
    # The copies that resharding and accumulation make on one device.
    _Series("clone", "$n -> $n", _rising(n=_EVERY_OTHER), COPY),
    _Series("cat {dim = 1 : i64}", "${m}x512, ${m}x512 -> ${m}x1024", _rising(m=_ROWS[:-1])),
    _Series("full {size = [$n], fill_value = 1.0 : f64, dtype = $f}", "-> $n", _rising(n=_EVERY_OTHER)),
    _Series(
        "random_dropout {p = 0.1 : f64, stream = 0 : i64}", "$n, scalar:i64<9 -> $n, $n:i1", _rising(n=_NUMBERS[:-2:2])
    ),
    _Series("sum.dim_IntList {dim = [0]}", "${m}x512 -> 512", _rising(m=_ROWS)),
    _Series("sum", "$n -> scalar", _rising(n=_EVERY_OTHER)),
    _Series("_softmax {dim = -1 : i64, half_to_float = false}", "${m}x512 -> ${m}x512", _rising(m=_ROWS)),
    _Series(
        "_log_softmax_backward_data {dim = -1 : i64, input_dtype = $f}",
        "${m}x512, ${m}x512 -> ${m}x512",
        _rising(m=_ROWS),
    ),
    _Series(
        "native_layer_norm {normalized_shape = [512], eps = 1.0e-5 : f64}",
        "${m}x512, 512, 512 -> ${m}x512, ${m}x1, ${m}x1",
        _rising(m=_ROWS),
    ),
    _Series(
        "native_layer_norm_backward {normalized_shape = [512], output_mask = [true, true, true]}",
        "${m}x512, ${m}x512, ${m}x1, ${m}x1, 512, 512 -> ${m}x512, 512, 512",
        _rising(m=_ROWS),
    ),
    _Series(f"attention {_CAUSAL}", f"{_HEAD}, {_HEAD}, {_HEAD} -> {_HEAD}, ${{b}}x4x$s", _HEADS),
    _Series(
        f"attention_backward {_CAUSAL}",
        f"{_HEAD}, {_HEAD}, {_HEAD}, {_HEAD}, {_HEAD}, ${{b}}x4x$s -> {_HEAD}, {_HEAD}, {_HEAD}",
        _HEADS,
    ),
    _Series(f"convolution {{{_WINDOW}}}", "${b}x${c}x${w}x$w, ${c}x${c}x3x3, $c -> ${b}x${c}x${w}x$w", _IMAGES),
    _Series(
        f"convolution_backward {{bias_sizes = [$c], {_WINDOW}, output_mask = [true, true, true]}}",
        "${b}x${c}x${w}x$w, ${b}x${c}x${w}x$w, ${c}x${c}x3x3 -> ${b}x${c}x${w}x$w, ${c}x${c}x3x3, $c",
        _IMAGES,
    ),
    _Series("embedding", "8192x256, $m:i64<8192 -> ${m}x256", _rising(m=_ROWS[:-1])),
    _Series(
        "embedding_dense_backward {num_weights = 8192 : i64, padding_idx = -1 : i64, scale_grad_by_freq = false}",
        "${m}x256, $m:i64<8192 -> 8192x256",
        _rising(m=_ROWS[:-1]),
    ),
    _Series("sum_exp", "${m}x512, $m -> $m", _rising(m=_ROWS)),
    _Series("cross_entropy_backward", "$m, ${m}x512, $m, $m:i64<512 -> ${m}x512", _rising(m=_ROWS)),
    _Series("gather {dim = 1 : i64}", "${m}x512, ${m}x1:i64<512 -> ${m}x1", _rising(m=_ROWS)),
    _Series(
        'nll_loss_forward {absent = ["weight"], reduction = 2 : i64, ignore_index = -100 : i64}',
        "${m}x512, $m:i64<512 -> scalar, scalar",
        _rising(m=_ROWS[::2]),
    ),
    _Series("t", "${n}x64 -> 64x$n", _rising(n=(64, 256, 1024))),
    _Series(f"train.adamw {_ADAMW}", "$n, $n, $n, $n, scalar, scalar:f64 -> $n, $n, $n", _rising(n=_NUMBERS)),
    _Series('train.sgd {absent = ["momentum_buffer", "step"]}', "$n, $n, scalar:f64 -> $n", _rising(n=_NUMBERS)),
)


def dtypes_of(device: str) -> tuple[str, ...]:
    """Return the floating-point types to measure on a type of device (`cpu`, `cuda`)."""
    return ("float32", "bfloat16") if device == "cuda" else ("float32",)


def family_samples(dtypes: Sequence[str], *, quick: bool = False) -> tuple[OpSample, ...]:
    """
    Return ops of every family, each at several sizes.

    Args:
        dtypes: torch's names of the floating-point types to measure.
        quick: whether to skip every second size, counted from the largest.
    """
    samples: dict[str, OpSample] = {}
    for dtype in dtypes:
        for series in _SERIES:
            sizes = series.sizes[::-2][::-1] if quick else series.sizes
            samples |= {sample.work.key: sample for sample in _samples(series, sizes, dtype)}
    return tuple(samples.values())


def _samples(series: _Series, sizes: Sequence[dict[str, int]], dtype: str) -> Iterator[OpSample]:
    context = Context()
    for dialect in (Builtin, Func, ATEN, TRAIN):
        context.load_dialect(dialect)
    element = _ELEMENT_TYPES[dtype]
    for chosen in sizes:
        types = Template(series.types).substitute(chosen).split("->")
        operands, results = ([each for each in side.strip().split(", ") if each] for side in types)
        op = Template(series.op).safe_substitute(chosen, f=element)
        text = _module(op, [_type(each, element) for each in operands], [_type(each, element) for each in results])
        module = parse_module(context, text)
        module.verify()
        op_found = next(each for each in module.walk() if isinstance(each, ComputeOp))
        work = work_of(op_found, _ONE_RANK, 0)
        if series.family:
            work = replace(work, family=series.family)
        highs = [int(each.partition("<")[2] or 2) for each in operands]
        if (sample := sample_of(op_found, _ONE_RANK, 0, work, highs)) is not None:
            yield sample


def _module(op: str, operands: Sequence[str], results: Sequence[str]) -> str:
    name, _, attributes = op.partition(" ")
    full = name if name.startswith("train.") else f"aten.{name}"
    ins, outs = ", ".join(operands), ", ".join(results)
    arguments = ", ".join(f"%x{i}: {each}" for i, each in enumerate(operands))
    given, made = (", ".join(f"%{a}{i}" for i in range(len(side))) for a, side in (("x", operands), ("y", results)))
    body = f"{made} = {full} {given} {attributes} : ({ins}) -> ({outs})\n  func.return {made} : {outs}"
    return f"func.func @op({arguments}) -> ({outs}) {{\n  {body}\n}}"


def _type(text: str, element: str) -> str:
    shape, _, other = text.partition(":")
    return f"tensor<{'' if shape == 'scalar' else shape + 'x'}{other.partition('<')[0] or element}>"
