"""The command line of `opt-tool`, modelled on mlir-opt."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..passes.errors import nearest
from .diagnostics import Diagnostic, DiagnosticError, ToolParser

TOOL = "opt-tool"
_USAGE = "opt-tool [FILE] [--pass-pipeline='PASS{OPTION=VALUE},PASS'] [-o FILE] [OPTION ...]"


def _switch(text: str, default: bool = False) -> Any:
    """Return the field of a switch, with its help."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class OptToolOptions:
    """
    The parsed command line; each field is the option of that name.

    A switch may be given alone or as --switch=true, --switch=false, as LLVM's tools allow. `show` is the text to print
    instead of running: "help", "passes", "dialects", "version", or "" to run.
    """

    input: str
    output: str
    pass_pipeline: str
    print_ir_before: tuple[str, ...]
    print_ir_after: tuple[str, ...]
    print_ir_before_all: bool = _switch("print the IR to stderr before every pass")
    print_ir_after_all: bool = _switch("print the IR to stderr after every pass")
    print_ir_after_change: bool = _switch("print the IR to stderr after every pass that changed it")
    mlir_timing: bool = _switch("print the time of every pass to stderr")
    mlir_print_op_generic: bool = _switch("print every op in the generic form")
    mlir_print_debuginfo: bool = _switch("print locations, which contain the names of the model", default=True)
    verify_each: bool = _switch("verify the IR after every pass", default=True)
    verify_diagnostics: bool = _switch("check errors against // expected-error@+1 {{text}} comments")
    verify_numerics: bool = _switch("run the IR before and after every pass on random inputs and compare")
    verify_numerics_seed: int
    split_input_file: bool = _switch("treat the parts between // ----- lines as separate files")
    allow_unregistered_dialect: bool = _switch("accept ops and attributes of unknown dialects")
    debug_traceback: bool = _switch("show the Python traceback of an error")
    show: str


_SWITCHES = {option.name.replace("_", "-"): option for option in fields(OptToolOptions) if option.metadata}
_SHOWS: dict[str, tuple[tuple[str, ...], str]] = {
    "help": (("-h", "--help"), "show this text, with the options of every pass, and exit"),
    "passes": (("--list-passes",), "list the passes and exit"),
    "dialects": (("--show-dialects",), "list the dialects and exit"),
    "version": (("--version",), "show the versions and exit"),
}


def parse_arguments(arguments: Sequence[str]) -> OptToolOptions:
    """Return the options of a command line; a DiagnosticError describes an invalid one."""
    parser = _parser()
    # Otherwise a bare switch would take the following file name as its value.
    words = [f"{each}=true" if each.removeprefix("--") in _SWITCHES else each for each in arguments]
    given, unknown = parser.parse_known_args(words)
    if unknown:
        raise DiagnosticError(_unknown_argument(unknown[0]))
    values = vars(given)
    for name in ("print_ir_before", "print_ir_after"):
        values[name] = tuple(each for text in values[name] for each in text.split(","))
    return OptToolOptions(**values)


def options_text() -> str:
    """Return the part of --help about the options of the tool itself."""
    return _parser().format_help()


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=TOOL,
        usage=_USAGE,
        description="Run passes on IR and print the resulting IR. A switch alone means =true.",
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="?", default="-", metavar="FILE", help="the IR file; - or nothing for standard input")
    add("-o", "--output", default="-", metavar="FILE", help="where to write the IR; standard output if not given")
    pipeline_help = "the passes to run, in order, with their options"
    add("-p", "--pass-pipeline", default="", metavar="PASSES", help=pipeline_help)
    for when in ("before", "after"):
        text = f"print the IR to stderr {when} these passes (a,b)"
        add(f"--print-ir-{when}", action="append", default=[], metavar="PASS", help=text)
    for name, option in _SWITCHES.items():
        text = option.metadata["help"] + (" (the default)" if option.default else "")
        add(f"--{name}", type=_true_or_false, default=option.default, metavar="BOOL", help=text)
    seed_help = "seed of the random inputs of --verify-numerics (default 0)"
    add("--verify-numerics-seed", type=int, default=0, metavar="N", help=seed_help)
    for name, (flags, text) in _SHOWS.items():
        add(*flags, action="store_const", const=name, default="", dest="show", help=text)
    return parser


def _true_or_false(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"takes true or false, not '{text}'") from None


def _unknown_argument(argument: str) -> Diagnostic:
    if not argument.startswith("-"):
        return Diagnostic(f"at most one input file is allowed, but '{argument}' is another", TOOL)
    name = argument.partition("=")[0]
    known = [*_SWITCHES, *("output", "pass-pipeline", "print-ir-before", "print-ir-after"), *("list-passes",)]
    hint = nearest(f"--{name.lstrip('-')}", [f"--{each}" for each in known])
    return Diagnostic(f"unknown option '{name}'", TOOL, hint=hint or f"{TOOL} --help lists the options")
