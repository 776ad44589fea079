"""
Mutations of IR: of its text, and of the parsed ops and attributes.

The result need not be valid IR; most mutations of ops give valid IR, which reaches the passes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from text_mutations import characters, cut, deleted, repeated
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntAttr, IntegerAttr, ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue
from xdsl.parser import Parser

from shardwright.dialects.text import module_text, parse_module

TextMutation = Callable[[str, random.Random], str]

_NUMBERS = (
    *("0", "-1", "1", "2", "3", "4", "7", "26", "63", "64", "65", "255", "1000", "100000", "50000000"),
    *(str(2**31 - 1), str(2**31), str(2**53 + 1), str(2**63 - 1), str(2**63), str(-(2**63)), str(2**64), "9" * 400),
    *("0x7fffffff", "0xffffffffffffffffff", "1.5", "0.0", "-0.0", "1.0e9", "1.0e308", "1.0e999", "1.0e-320", "-1.0"),
    *("0.3", "1.0e23", "0x7FF8000000000000", "0x7FF0000000000000", "9" * 5000, "-2", "1.0e-30", "1e5"),
)
_WORDS = (
    *('""', '"class"', '"é"', '"a b"', '"gpu"', '"micro"', '"\\00"', '"\\22"', '"\\0A"', '"x"', '"__import__"', '"0"'),
    *('"' + "a" * 5000 + '"', '"aten::mm"', '"sum"', '"max"', '"*"', '"([i]) -> ([i])"', '"([i, j]) -> ([i])"'),
    *('"([i]) -> ([i]) {i=4}"', '"padded"', '"hierarchical"', '"all_reduce"', '"ring"', '"f"', '"momentum_buffer"'),
)
_TYPES = (
    *(
        "i64",
        "f32",
        "i1",
        "bf16",
        "f64",
        "index",
        "none",
        "tensor<f32>",
        "tensor<0xf32>",
        "tensor<4x0xf32>",
        "!spmd.token",
    ),
    *("tensor<1xf32>", "tensor<4xi64>", "tensor<4x4xf32>", "tensor<?x4xf32>", "tensor<*xf32>", "tensor<4xi1>", "i0"),
    *("tensor<2147483648x2147483648xf32>", "tensor<9999999999999999999999xf32>", "vector<4xf32>", "memref<4xf32>"),
    *("tensor<4xcomplex<f32>>", "tensor<4xindex>", "tensor<4x!spmd.token>", "tensor<4xtensor<4xf32>>", "i99999999999"),
    *("tensor<" + "1x" * 70 + "f32>", "tensor<4xf32, dense<0> : tensor<1xi32>>", "tensor<4xui8>", "f80", "tuple<f32>"),
)
_ATTRIBUTES = (
    *(
        "unit",
        "true",
        "false",
        "0 : i64",
        "-1 : i64",
        "26 : i64",
        "9223372036854775807 : i64",
        "1000000 : i64",
        "1 : i1",
    ),
    *("3 : i8", "2 : index", "0.0 : f64", "-1.0 : f64", "1.5 : f64", "1.0e308 : f64", "0x7FF8000000000000 : f64"),
    *(
        "0x7FF0000000000000 : f64",
        '""',
        '"x"',
        '"é"',
        '"a b"',
        '"mean"',
        "[]",
        "[0 : i64]",
        "[-1 : i64, -1 : i64]",
        "[[]]",
    ),
    *("[1 : i64, 2 : i64, 3 : i64]", '["x", "y"]', "{}", "{a = 1 : i64}", "@mesh", "@nothing", "@a::@b", "f32", "i64"),
    *(
        "tensor<4xf32>",
        "array<i64>",
        "array<i64: 0, 1>",
        "array<i64: -1, 99>",
        "array<f64: 0.5>",
        "dense<1> : tensor<2xi64>",
    ),
    *("#spmd.sharding<@mesh, [{}]>", '#spmd.sharding<@mesh, [{"gpu"}, {}]>', "#spmd.sharding<@nothing, [{}]>"),
    *('#spmd.sharding<@mesh, [], unreduced={"gpu"}>', '#spmd.sharding<@mesh, [{"gpu"}]>', "#spmd.axes<[{}]>"),
    *(
        "#spmd.sig<@mesh ([]) -> ()>",
        '#spmd.rule<"([i]) -> ([i])">',
        '#spmd.mesh<["gpu"=2]>',
        "affine_map<(d0) -> (d0)>",
    ),
    *('loc("a":1:2)', "[" * 100 + "]" * 100, "#builtin.int<3>", "#none", "() -> ()"),
)
_NAMES = (
    *(
        "train.param",
        "train.state",
        "train.buffer",
        "train.constant",
        "train.batch",
        "train.learning_rate",
        "train.seed",
    ),
    *(
        "train.step_count",
        "train.updates",
        "train.loss",
        "train.grad",
        "train.metric",
        "train.output",
        "train.backward",
    ),
    *("train.loss_gradient", "train.forward", "train.reduce_dtype", "train.update", "train.initial", "spmd.sharding"),
    *("spmd.signature", "spmd.working", "spmd.ratios", "spmd.segment", "spmd.pieces", "spmd.search"),
    "spmd.memory_saving",
    *(
        "spmd.rule",
        "absent",
        "independent",
        "stream",
        "dim",
        "size",
        "keepdim",
        "dtype",
        "method",
        "regather",
        "pipe.slot",
    ),
    *("pipe.stage", "stage", "slot", "sym_visibility", "res_attrs", "arg_attrs", "function_type"),
)
_LINES = (
    *(
        "builtin.module {",
        "}",
        "func.func @step() {",
        "func.return",
        "^bb0:",
        "^bb0(%a: i32):",
        '"test.op"() : () -> ()',
    ),
    *(
        'spmd.mesh @mesh = <["gpu"=4]>',
        'spmd.mesh @mesh = <["gpu"=50000000]>',
        'spmd.mesh @m = <["a"=2, "b"=3 temporal]>',
    ),
    *('spmd.mesh @mesh = <["gpu"=4611686018427387904]>', "func.func private @f(tensor<f32>)", "spmd.free", "#a = #a"),
    *('%z = "aten.relu"() : () -> tensor<4xf32>', "{-# dialect_resources: {} #-}", "cf.br ^bb0", "!t = tensor<4x!t>"),
    *("(" * 3000, "[" * 3000, "{" * 3000, "%a:4 = ", '"builtin.module"() ({' * 300, "tensor<" * 500, "// -----"),
    *('"builtin.module"() ({' * 200 + "}) : () -> ()" * 200, "#x = " + "[" * 3000 + "]" * 3000),
)
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[%@#!^][\w.$-]+|[A-Za-z_][\w.$]*|\d[\w.]*(?:e[+-]?\d+)?|->|[^\s\w]|\S')
_NUMBER = re.compile(r"(?<![\w.%@#^\"])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|(?<=x)\d+(?=x)|(?<=<)\d+(?=x)")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_TYPE = re.compile(r"tensor<[^<>\n]*>|\b(?:i64|f32|f64|i1)\b")
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")


def _number(text: str, draw: random.Random) -> str:
    """Change a number in one place, or in all its places."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    at = draw.choice(numbers)
    near = [str(int(at[0]) + step) for step in (-1, 1)] if at[0].isdecimal() and len(at[0]) < 20 else []
    return _put(text, at, draw.choice((*_NUMBERS, *near * 4, *(draw.choice(numbers)[0] for _ in range(12)))), draw)


def _put(text: str, at: re.Match[str], new: str, draw: random.Random) -> str:
    """Put `new` at one place, or at all places of the same word."""
    if draw.random() < 0.25:
        return re.sub(rf"(?<![\w.]){re.escape(at[0])}(?![\w.])|(?<=x){re.escape(at[0])}(?=x)", lambda _: new, text)
    return text[: at.start()] + new + text[at.end() :]


def _swapped_in(pattern: re.Pattern[str], others: Sequence[str]) -> TextMutation:
    """Return a mutation that swaps a match of `pattern` for another match in the text, or for one of `others`."""

    def mutation(text: str, draw: random.Random) -> str:
        found = list(pattern.finditer(text))
        if not found:
            return text
        at = draw.choice(found)
        fresh = bool(others) and draw.random() < 0.4
        return _put(text, at, draw.choice(others) if fresh else draw.choice(found)[0], draw)

    return mutation


def _tokens(text: str, draw: random.Random) -> str:
    """Delete, repeat or replace one token."""
    lines = text.splitlines()
    candidates = [at for at, line in enumerate(lines) if line.strip()]
    if not candidates:
        return text
    at = draw.choice(candidates)
    tokens = list(_TOKEN.finditer(lines[at]))
    if not tokens:
        return text
    replaced, other = draw.choice(tokens), draw.choice(tokens)
    new = draw.choice(
        ("", replaced[0] * 2, f"{replaced[0]} {replaced[0]}", other[0], draw.choice(_TOKEN.findall(text)))
    )
    lines[at] = lines[at][: replaced.start()] + new + lines[at][replaced.end() :]
    return "\n".join(lines) + "\n"


def _moved(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    if not lines:
        return text
    line = lines.pop(draw.randrange(len(lines)))
    lines.insert(draw.randrange(len(lines) + 1), line)
    return "\n".join(lines) + "\n"


def _inserted(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(_LINES))
    return "\n".join(lines) + "\n"


def _part(text: str, draw: random.Random) -> str:
    """Empty, double, shuffle or deeply nest the contents of a pair of brackets."""
    brackets = list(re.finditer(r"\[[^\[\]\n]*\]|\{[^{}\n]*\}|\([^()\n]*\)|<[^<>\n]*>", text))
    if not brackets:
        return text
    at = draw.choice(brackets)
    inner = at[0][1:-1]
    entries = inner.split(",")
    draw.shuffle(entries)
    opened, closed = at[0][0], at[0][-1]
    deep = draw.choice((50, 2000))
    new = draw.choice(
        ("", f"{inner}, {inner}", ",".join(entries), ",".join(entries[1:]), opened * deep + closed * deep)
    )
    return text[: at.start()] + opened + new + closed + text[at.end() :]


def _resized(text: str, draw: random.Random) -> str:
    """Change the size of a dim in the types of all tensors."""
    extents = re.findall(r"(?<=[<x])\d+(?=x)", text)
    if not extents:
        return text
    old, new = draw.choice(extents), draw.choice(("1", "2", "3", "4", "5", "16", "48", "1000003", *extents))
    return re.sub(rf"(?<=[<x]){old}(?=x)", new, text)


TEXT_MUTATIONS: tuple[TextMutation, ...] = (
    *(_resized,) * 2,
    *(_number,) * 5,
    *(_swapped_in(_STRING, _WORDS),) * 3,
    *(_swapped_in(_TYPE, _TYPES),) * 2,
    *(_swapped_in(_VALUE, ()),) * 2,
    *(_tokens, _tokens, _moved, _inserted, _part, _part, deleted, repeated, characters, cut),
)


def mutated_ops(text: str, draw: random.Random, ctx: Context) -> str:
    """Mutate ops and attributes of a module and return its generic form; return `text` if that fails."""
    try:
        module = parse_module(ctx, text)
        for _ in range(draw.choice((1, 1, 2, 3))):
            draw.choice(_OP_MUTATIONS)(module, draw, ctx)
        return module_text(module, generic=True)
    except Exception:
        # xDSL may refuse to make or print a change; then there is no text to read.
        return text


def _ops(module: ModuleOp) -> list[Operation]:
    return [op for op in module.walk() if op is not module]


def _attribute(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Change, add or delete an attribute or property."""
    op = draw.choice(_ops(module))
    fields = draw.choice([each for each in (op.attributes, op.properties) if each] or [op.attributes])
    kind = draw.random()
    if not fields or kind < 0.15:
        others = [draw.choice(_ops(module)) for _ in range(20)]
        pool = [(name, value) for other in others for name, value in other.attributes.items()]
        name, value = draw.choice(pool or [("x", StringAttr("x"))])
        fields[draw.choice((name, *_NAMES))] = draw.choice((value, _any(draw, ctx)))
    elif kind < 0.3:
        del fields[draw.choice(list(fields))]
    else:
        name = draw.choice(list(fields))
        fields[name] = changed(fields[name], draw, ctx)


def changed(attribute: Attribute, draw: random.Random, ctx: Context) -> Attribute:
    """Return another attribute, mostly of the same kind with one difference."""
    if draw.random() < 0.1:
        return _any(draw, ctx)
    match attribute:
        case ArrayAttr(data=entries):
            return ArrayAttr(_entries(entries, draw, ctx))
        case DictionaryAttr(data=named) if named:
            name = draw.choice(list(named))
            rest = {key: value for key, value in named.items() if key != name}
            new = draw.choice((name, name, name, *_NAMES))
            return DictionaryAttr({**rest, new: changed(named[name], draw, ctx)} if draw.random() < 0.8 else rest)
        case IntegerAttr():
            near = attribute.value.data + draw.choice((-1, 1, 2, 7))
            number = draw.choice((near, near, 0, -1, 26, 1000, 50_000_000, 2**62, -(2**63)))
            return IntegerAttr(IntAttr(number), attribute.type)
        case StringAttr():
            return StringAttr(draw.choice(("", "x", "é", "a b", "gpu", "class", 'a"b', "a\nb", attribute.data * 2)))
        case TensorType() if not draw.randrange(3):
            return TensorType(attribute.element_type, _entries(attribute.get_shape(), draw, ctx))
        case ParametrizedAttribute() if attribute.parameters and draw.random() < 0.5:
            parameters = list(attribute.parameters)
            at = draw.randrange(len(parameters))
            parameters[at] = changed(parameters[at], draw, ctx)
            return type(attribute).new(parameters)
        case _:
            text = draw.choice(TEXT_MUTATIONS[:12])(str(attribute), draw)
            return Parser(ctx, text).parse_attribute()


def _entries(entries: Sequence[object], draw: random.Random, ctx: Context) -> list[Any]:
    listed: list[Any] = list(entries)
    at = draw.randrange(len(listed) or 1)
    match draw.randrange(5) if listed else 4:
        case 0:
            del listed[at]
        case 1:
            listed.insert(draw.randrange(len(listed) + 1), listed[at])
        case 2:
            draw.shuffle(listed)
        case 3 if isinstance(each := listed[at], Attribute):
            listed[at] = changed(each, draw, ctx)
        case _ if listed and isinstance(listed[0], int):
            listed[at] = draw.choice((0, 1, 2, 3, 5, 64, 1 << 40))
        case _:
            listed.insert(at, _any(draw, ctx))
    return listed


def _any(draw: random.Random, ctx: Context) -> Attribute:
    return Parser(ctx, draw.choice(_ATTRIBUTES)).parse_attribute()


def _values(module: ModuleOp) -> Iterator[SSAValue]:
    for op in module.walk():
        yield from op.results
        for region in op.regions:
            for block in region.blocks:
                yield from block.args


def _alike(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Copy an attribute from one op to another."""
    fields = [f for op in _ops(module) for f in (op.attributes, op.properties)]
    name = draw.choice([name for each in fields for name in each] or [""])
    having = [each for each in fields if name in each]
    if having:
        draw.choice(having)[name] = draw.choice(having)[name]


def _roles(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Exchange, drop or copy attributes of arguments or results."""
    for op in _ops(module):
        listed = op.properties.get(draw.choice(("arg_attrs", "res_attrs")))
        if isinstance(listed, ArrayAttr) and len(listed.data) > 1:
            entries = [dict(entry.data) for entry in listed.data if isinstance(entry, DictionaryAttr)]
            one, other = draw.choice(entries), draw.choice(entries)
            name = draw.choice([*one, *other, "x"])
            if name in one and draw.random() < 0.5:
                del one[name]
            elif name in other:
                one[name] = other[name]
            key = next(key for key, value in op.properties.items() if value is listed)
            op.properties[key] = ArrayAttr([DictionaryAttr(entry) for entry in entries])


def _operand(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Change, delete, add or reorder operands."""
    using = [op for op in _ops(module) if op.operands]
    op = draw.choice(using or _ops(module))
    operands = list(op.operands)
    values = list(_values(module))
    at = draw.randrange(len(operands) or 1)
    alike = [value for value in values if operands and value.type == operands[at].type]
    match draw.randrange(9):
        case 0 if operands:
            del operands[at]
        case 1:
            operands.insert(at, draw.choice(values))
        case 2:
            draw.shuffle(operands)
        case 3 if operands:
            operands[at] = draw.choice(values)
        case _ if alike:
            operands[at] = draw.choice(alike)
        case _:
            pass
    op.operands = operands


def _type(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Change the type of a value, or of all values of a type."""
    values = [value for value in _values(module) if isinstance(value.type, TensorType)]
    value = draw.choice(values)
    new = changed(value.type, draw, ctx) if draw.random() < 0.7 else draw.choice(values).type
    old = value.type
    for each in [value] if draw.random() < 0.5 else values:
        if each.type == old:
            each._type = new  # pyright: ignore[reportPrivateUsage]


def _place(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Move an op, even to another block."""
    op, other = draw.choice(_ops(module)), draw.choice(_ops(module))
    if other.parent is None or op.is_ancestor(other):
        return
    op.detach()
    other.parent.insert_op_before(op, other)


def _copy(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Copy an op, and let some uses read the results of the copy."""
    op = draw.choice(_ops(module))
    other = op.clone()
    assert op.parent is not None
    op.parent.insert_op_after(other, op)
    for old, new in zip(op.results, other.results, strict=True):
        for use in list(old.uses):
            if draw.random() < 0.5 and use.operation is not other:
                use.operation.operands[use.index] = new


def _less(module: ModuleOp, draw: random.Random, ctx: Context) -> None:
    """Delete an op, and replace its results by other values."""
    op = draw.choice(_ops(module))
    for result in op.results:
        alike = [value for value in _values(module) if value.type == result.type and value.owner is not op]
        if alike:
            result.replace_all_uses_with(draw.choice(alike))
    op.detach()


_OP_MUTATIONS: tuple[Callable[[ModuleOp, random.Random, Context], None], ...] = (
    *(_attribute,) * 6,
    *(_alike,) * 5,
    *(_roles,) * 3,
    *(_operand,) * 4,
    *(_type,) * 3,
    *(_place, _copy, _less),
)
