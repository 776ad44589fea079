"""The samples of `op_samples.txt` as modules, each one function with one op."""

import re
from dataclasses import dataclass
from pathlib import Path

UNDEFINED = frozenset(
    {"empty.memory_format", "new_empty", "empty_like", "empty_permuted", "empty_strided", "new_empty_strided"}
)
"""Ops with arbitrary values; only their shapes are compared."""

_LINE = re.compile(
    r"(?P<name>\S+) (?P<arguments>\{.*\} )?(?:!(?P<absent>\S+) )?: ?(?P<operands>.*?) ?-> (?P<results>.*)"
)
_TYPE = re.compile(
    r"(?P<shape>scalar|[\dx]+)(?::(?P<element>\w+))?(?P<positive>\+)?(?:=(?P<all>[\d.]+))?(?:<(?:(?P<low>-\d+)\.\.)?(?P<high>\d+))?"
)
_COMPLEX = {"c64": "complex<f32>", "c128": "complex<f64>"}


@dataclass(frozen=True)
class OpSample:
    """One use of an op: its overload, its line in the file, and a module with only this op."""

    overload: str
    line: str
    module: str


def op_samples() -> list[OpSample]:
    """Return every sample, in the order of the file."""
    lines = Path(__file__).with_name("op_samples.txt").read_text().splitlines()
    return [_sample(line) for line in lines if line and not line.startswith("#")]


def _sample(line: str) -> OpSample:
    match = _LINE.fullmatch(line)
    assert match is not None, f"not a sample: {line}"
    operands, results = ([t for t in match[side].split(", ") if t] for side in ("operands", "results"))
    attributes = (match["arguments"] or "{}").strip()[1:-1]
    if match["absent"]:
        absent = ", ".join(f'"{name}"' for name in match["absent"].split(","))
        attributes = ", ".join(filter(None, (attributes, f"absent = [{absent}]")))
    arguments = ", ".join(f"%x{i}: {_type(t)}{_role(t, i)}" for i, t in enumerate(operands))
    operand_names = ", ".join(f"%x{i}" for i in range(len(operands)))
    result_names = ", ".join(f"%y{i}" for i in range(len(results)))
    ins, outs = (", ".join(map(_type, types)) for types in (operands, results))
    module = f"""
func.func @op({arguments}) -> ({outs}) {{
  {result_names} = aten.{match["name"]} {operand_names} {{{attributes}}} : ({ins}) -> ({outs})
  func.return {result_names} : {outs}
}}"""
    return OpSample(match["name"], line, module)


def _type(text: str) -> str:
    match = _TYPE.fullmatch(text)
    assert match is not None, f"not a type: {text}"
    shape = "" if match["shape"] == "scalar" else match["shape"] + "x"
    element = match["element"] or "f64"
    return f"tensor<{shape}{_COMPLEX.get(element, element)}>"


def _role(text: str, index: int) -> str:
    match = _TYPE.fullmatch(text)
    assert match is not None
    if match["all"]:
        return f' {{train.constant = "x{index}", train.value = dense<{match["all"]}> : {_type(text)}}}'
    if match["high"]:
        return f' {{train.batch = "x", train.range = [{match["low"] or 0}, {match["high"]}]}}'
    return f' {{train.buffer = "{index}.running_var"}}' if match["positive"] else ' {train.batch = "x"}'
