"""The command line of `shardwright`: its commands, their options, and the function that runs each command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from ..ir.cluster_file import shipped_clusters
from ..ir.mesh import Mesh, parse_mesh
from ..ir.pins import PRESETS
from ..ir.plain import did_you_mean
from ..ir.plan_options import differing, refusal, seconds_of, taken_by
from ..ir.versions import version_of
from ..models.names import NAMES
from .diagnostics import Diagnostic, DiagnosticError, ToolParser

TOOL = "shardwright"
_REDUCE_DTYPES = ("float32", "bfloat16", "float16")
_STEP = (
    "a shipped model (mlp, gpt2-small, mlp-tiny, ...), hf:TYPE or hf:TYPE?setting=value of Hugging Face, or "
    "package.module:callable returning a TrainingStep"
)
_CLUSTER = "a cluster file, or the name of a shipped one"

_JSON = "print one JSON object to standard output, and everything else to standard error"

_Add = Callable[..., object]


def command_line(*words: object) -> str:
    """Return a command of this tool as shell text, for messages that recommend it."""
    return shlex.join((TOOL, *map(str, words)))


def tool_error(message: str, hint: str = "") -> DiagnosticError:
    """Return the error of a command with a message, and a hint about what to do."""
    return DiagnosticError(Diagnostic(message, TOOL, hint=hint))


@contextmanager
def told(
    kinds: type[Exception] | tuple[type[Exception], ...], before: str = "", hint: str = ""
) -> Generator[None, None, None]:
    """Inside, turn errors of some kinds into the error of the command, with a text before their messages."""
    try:
        yield
    except kinds as error:
        raise tool_error(f"{before}{error}", hint) from error


def mesh_of(text: str) -> Mesh:
    """Read the value of `--mesh`, or raise a DiagnosticError."""
    with told(ValueError, "--mesh: "):
        return parse_mesh(text)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; `handler` of the result runs the command. DiagnosticError describes an invalid line."""
    parser, commands = _parsers()
    complete(parser, commands.values())
    words = [_present(word) for word in arguments]
    if words and (command := commands.get(words[0])) is not None:
        # Argparse reports missing arguments first, although they may be missing because of a misspelt flag.
        _refuse_unknown_flags(command, words[1:])
    options, unknown = parser.parse_known_args(words)
    parser.prog = f"{TOOL} {arguments[0]}"
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if (problem := _refusal(options)) is not None:
        parser.error(problem)
    return options


def _refuse_unknown_flags(command: ToolParser, words: Sequence[str]) -> None:
    known = [flag for action in command._actions for flag in action.option_strings]
    for word in words:
        flag = word.partition("=")[0]
        if word == "--":
            return
        if flag.startswith("--") and flag not in known:
            command.error(f"unrecognized arguments: {flag}{did_you_mean(flag, known)}")


def _present(word: str) -> str:
    """Return a word with the present name of a flag, and warn about a former one."""
    flag, equals, value = word.partition("=")
    if flag not in _FORMER:
        return word
    print(f"warning: {flag} is called {_FORMER[flag]}, and the former name will be removed", file=sys.stderr)
    return f"{_FORMER[flag]}{equals}{value}"


_FORMER = {"--pin": "--pins", "--pass-pipeline": "--pipeline"}
"""Map flags of the last release to their present names."""


def _refusal(options: argparse.Namespace) -> str | None:
    """Return why the options of a command cannot be obeyed together, or None if they can."""
    if getattr(options, "profile", False) and options.cluster is not None:
        return "--profile and --cluster exclude each other: one measures the cluster, the other names it; leave one out"
    given = plan_arguments(options)
    return refusal(given, {name: _flag(name) for name in given})


def plan_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the plan that a command line has, by their names in Python."""
    return {name: getattr(options, name) for name in taken_by(options.command) if hasattr(options, name)}


def refuse_for_planned(options: argparse.Namespace, target: str, *also: str, besides: str = "") -> None:
    """Refuse planning options, and the options `also`, for a target with a plan; the command accepts `besides`."""
    asked = [name for name in differing(plan_arguments(options)) if name != besides]
    if given := [*(name for name in also if getattr(options, name) not in (None, False)), *asked]:
        message = f"{target} is already a plan, but {', '.join(map(_flag, given))} would change the planning"
        hint = f"leave {'it' if len(given) == 1 else 'them'} out, or name the step instead"
        raise tool_error(message, hint)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parsers() -> tuple[ToolParser, dict[str, ToolParser]]:
    """Return the parser of the tool, and the parsers of its commands by name."""
    parser = ToolParser(
        prog=TOOL,
        description="Turn a single-device PyTorch training step into the program that trains it on a cluster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{TOOL} {version_of(TOOL)}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands: dict[str, ToolParser] = {}
    for name, (handler, summary, add_options) in _COMMANDS.items():
        command = commands[name] = subparsers.add_parser(
            name, help=summary, description=f"{summary}.", allow_abbrev=False
        )
        add_options(command.add_argument)
        help_text = "show the Python traceback of an error"
        command.add_argument("--debug-traceback", action="store_true", help=help_text)
        command.set_defaults(handler=handler, command=name)
    return parser, commands


def _import_options(add: _Add) -> None:
    add("step", metavar="STEP", help=_STEP)
    add("-o", "--output", default="-", metavar="FILE", help="where to write the IR (standard output)")
    _of_plans(add, "import")
    _reduce_dtype(add)
    add("--cluster", metavar="FILE", help=f"{_CLUSTER}, to put at the head of the file")
    add("--coverage", metavar="FILE", help="where to write the ops that have no rule, as JSON")


def _plan_options(add: _Add) -> None:
    add("step", metavar="STEP", help=_STEP)
    add("--cluster", required=True, metavar="FILE", help=_CLUSTER)
    add("--out", required=True, metavar="DIR", help="where to write the files of the plan: step.mlir, program.py, ...")
    _of_plans(add, "plan")
    _reduce_dtype(add)
    add("--json", action="store_true", help=_JSON)


def _replan_options(add: _Add) -> None:
    add("plan", metavar="DIR", help="the folder that `plan` wrote")
    add("--cluster", required=True, metavar="FILE", help=f"{_CLUSTER}, with the devices available now")
    add("--out", required=True, metavar="DIR", help="where to write the new plan")
    kept = (
        "the old ranks that remain, such as 0,1,3, in the order of the new ones; by default the ranks that move least"
    )
    add("--remaining", type=_ranks, metavar="RANKS", help=kept)


def _run_options(add: _Add) -> None:
    add("target", metavar="DIR|STEP", help=f"the folder that `plan` wrote, or a step to plan: {_STEP}")
    add("--nproc-per-node", type=_positive, metavar="N", help="number of processes (the number of ranks of the plan)")
    add("--steps", type=_positive, default=5, metavar="K", help="number of training steps (%(default)s)")
    _of_plans(add, "run")
    add("--seed", type=int, default=0, help="seed of the weights and of random numbers in steps (%(default)s)")
    overlap_help = "measure the overlap of communication and computation into FILE, for simulate --measured"
    add("--overlap", metavar="FILE", help=overlap_help)
    add("--save", metavar="FOLDER", help="write checkpoints into FOLDER, the last one at the end")
    add("--save-every", type=_positive, metavar="N", help="also write a checkpoint after every N steps")
    add("--keep", type=_positive, metavar="M", help="number of newest checkpoints to keep (2)")
    resume_help = "resume until step K from the newest checkpoint in FOLDER, of any plan, if there is one"
    add("--resume", action="store_true", help=resume_help)
    add("--cluster", metavar="FILE", help=f"{_CLUSTER}; by default a generic machine of N processes")
    add("--profile", action="store_true", help="measure this machine first and plan for that")


def _explain_options(add: _Add) -> None:
    add("plan", metavar="DIR", help="the folder that `plan` wrote")
    value_help = (
        "a parameter, optimizer state or batch item as in pins (h.0.mlp.up.weight, batch.0), a glob of such names, or "
        "the result of an op (h.0.mlp.up.addmm): print its placement, and the step time with the best alternatives"
    )
    add("value", nargs="?", metavar="VALUE|OP", help=value_help)
    add("--json", action="store_true", help=_JSON)


def _report_options(add: _Add) -> None:
    add("plan", metavar="DIR", help="the folder that `plan` wrote")
    add("-o", "--output", default="report.html", metavar="FILE", help="where to write the page (%(default)s)")
    add("--against", metavar="OTHER", help="the folder of another plan, to compare with")
    measured_help = "the measurements of run --overlap or step.profile() (DIR/measured.json, if there is one)"
    add("--measured", metavar="FILE", help=measured_help)


def _simulate_options(add: _Add) -> None:
    add(
        "target",
        metavar="DIR|FILE|STEP",
        help=f"the folder of a plan, an IR file with all decisions, or a step: {_STEP}",
    )
    add("--cluster", metavar="FILE", help=f"{_CLUSTER}, in place of the plan's")
    set_help = (
        "override a field of the cluster, with units as in cluster files: link.node.bandwidth=25GB/s or '10 Gbit/s', "
        "link.node.latency=5us, device.a100.memory=80GiB; repeatable"
    )
    add("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE", help=set_help)
    sweep_help = "simulate COUNT values of a field, as link.node.bandwidth=1GB/s..100GB/s:9"
    add("--sweep", metavar="FIELD=FROM..TO:COUNT", help=sweep_help)
    add("--plot", metavar="FILE", help="where to write a picture of the step, or of the sweep")
    add("--replan", action="store_true", help="search again for the changed cluster, at every value of a sweep")
    add("--trace", metavar="FILE", help="where to write a trace for Perfetto, including measured steps")
    measured_help = "the measurements of run --overlap or step.profile(), to compare with the prediction"
    add("--measured", metavar="FILE", help=measured_help)
    _of_plans(add, "simulate")
    add("--json", action="store_true", help=_JSON)


def _check_options(add: _Add) -> None:
    add("step", metavar="STEP", help=_STEP)
    add("--mesh", required=True, metavar="MESH", help="sizes as 2x2, or named axes as dp=2,tp=2")
    backend_help = "run the program on gloo processes, or the IR in this one (%(default)s)"
    add("--backend", choices=("gloo", "interpreter"), default="gloo", help=backend_help)
    add("--cluster", metavar="FILE", help=f"{_CLUSTER}, put on the mesh; by default a generic one")
    _of_plans(add, "check")
    add("--dtype", choices=("float32", "float64"), default="float32", help="dtype of all floats (%(default)s)")
    add("--json", action="store_true", help=_JSON)
    add("--steps", type=_positive, default=5, metavar="K", help="number of training steps (%(default)s)")
    add("--optimizer", choices=("sgd", "adamw"), help="the optimizer that replaces the step's own")


def _profile_options(add: _Add) -> None:
    add("-o", "--output", default="-", metavar="FILE", help="where to write the cluster file (standard output)")
    add("--nproc-per-node", type=_positive, metavar="N", help="number of processes to start here; not under torchrun")
    add("--mesh", metavar="MESH", help="the axes of the ranks, such as node=2,gpu=4; by default gpu=N")
    seconds_help = "approximate time to measure, as 90, 90s or 2min (60s)"
    add("--seconds", type=_duration, default=60.0, metavar="DURATION", help=seconds_help)
    add("--resume", action="store_true", help="resume from the measurements of an earlier run to the same FILE")
    ops_help = "also measure the ops of a plan, or of a step planned here, in their local shapes; repeatable"
    add("--ops-of", action="append", default=[], metavar="DIR|STEP", help=ops_help)
    add("--cluster", metavar="FILE", help=f"{_CLUSTER}, which receives the times of --ops-of; by default the plan's")


def _check_rule_options(add: _Add) -> None:
    add("op", metavar="OP", help="mylib::op or mylib::op.overload")
    add("rule", metavar="RULE", help="such as '([b, k], [k, n]) -> ([b, n]) reduction={k} linear={0, 1}'")
    modules_help = "a module to import, which defines the op; repeatable"
    add("--import", dest="modules", action="append", default=[], metavar="MODULE", help=modules_help)
    sample_help = "operands to try, such as '6x4, 4x5' or '6x5, 6:int64<5'; repeatable; by default they are generated"
    add("--sample", dest="samples", action="append", default=[], metavar="OPERANDS", help=sample_help)


def _theory_options(add: _Add) -> None:
    add("op", metavar="OP", help="an op such as mm, sum.dim_IntList or aten.relu; or 'collectives'")
    shapes_help = "shapes of operands, such as '6x4, 4x5', or with results, '6x4, 4x5 -> 6x5'; by default generated"
    add("shapes", nargs="?", metavar="SHAPES", help=shapes_help)
    add("--mesh", default="2", metavar="MESH", help="sizes as 2x2, or named axes as dp=2,tp=2 (one axis of 2)")
    argument_help = "an argument that is not a tensor, such as dim=[0]; repeatable"
    add("--argument", dest="arguments", action="append", default=[], metavar="NAME=VALUE", help=argument_help)
    add("--all", action="store_true", help="also print triples that the paper lacks: partial sums and slices")


def _of_plans(add: _Add, command: str) -> None:
    """Add a command's options of the plan; the parsed result lacks the name of an option that the user left out."""
    for name, option in taken_by(command).items():
        usual, keywords = option.default, dict(option.values.flag)
        flag = _flag(f"no_{name}" if usual is True else name)
        if isinstance(usual, bool):
            keywords["action"] = "store_false" if usual else "store_true"
        if (kind := keywords.get("type")) in _KINDS:
            keywords["type"] = _KINDS[kind]
        text = f"{option.help} ({usual})" if isinstance(usual, str) else option.help
        add(flag, dest=name, default=argparse.SUPPRESS, help=text, **keywords)


def _reduce_dtype(add: _Add) -> None:
    reduce_help = "dtype in which gradients are reduced over devices in mixed precision; by default the search decides"
    add("--reduce-dtype", choices=_REDUCE_DTYPES, help=reduce_help)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"takes a positive whole number, not '{text}'")
    return number


def _duration(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_KINDS: dict[object, Callable[[str], float]] = {int: _positive, seconds_of: _duration}
"""Maps the types of the table of options to functions with errors for a command line."""


def _ranks(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes rank numbers, such as 0,1,3, not '{text[:80]}'") from None


_COMMANDS: dict[str, tuple[str, str, Callable[[_Add], None]]] = {
    "import": ("cli_plan:import_command", "Write the IR of a training step, before any decision", _import_options),
    "plan": ("cli_plan:plan_command", "Find the fastest plan of a step and write its program", _plan_options),
    "replan": ("cli_replan:replan_command", "Plan again for other devices, moving little state", _replan_options),
    "run": ("cli_run:run_command", "Run a plan with torchrun on this machine", _run_options),
    "explain": ("cli_explain:explain_command", "Say why a plan won, and what others would cost", _explain_options),
    "report": ("cli_report:report_command", "Write a page that shows a plan and the reasons", _report_options),
    "simulate": ("cli_simulate:simulate_command", "Predict a step in detail, and what-ifs", _simulate_options),
    "check": ("cli_check:check_command", "Compare a plan with one device, step by step", _check_options),
    "check-rule": ("cli_check:check_rule_command", "Check a sharding rule of an op on numbers", _check_rule_options),
    "theory": ("cli_theory:theory_command", "Print the Hoare triples of an op or of collectives", _theory_options),
    "profile": ("cli_profile:profile_command", "Measure a cluster and write its file", _profile_options),
}
"""Command -> the function that runs it, a one-line summary, and the function that adds its options."""


_REQUESTED = "_ARGCOMPLETE"
"""The environment variable that a shell sets to ask for completions."""


def complete(parser: argparse.ArgumentParser, commands: Iterable[argparse.ArgumentParser]) -> None:
    """Answer the shell and end the process if it asks for completions."""
    if _REQUESTED not in os.environ:
        return
    try:
        import argcomplete
    except ImportError as error:
        raise SystemExit(f"completion needs argcomplete ({error}): pip install 'shardwright[completion]'") from error
    for action in (action for command in commands for action in command._actions):
        if (names := _names().get(action.dest)) is not None:
            # Argcomplete reads this attribute.
            setattr(action, "completer", _NamesAndFiles(names))
    argcomplete.autocomplete(parser)


def _names() -> dict[str, tuple[str, ...]]:
    """Return the names that an argument takes besides files, by its name in the parsed options."""
    clusters = tuple(shipped_clusters())
    return {"step": NAMES, "target": NAMES, "cluster": clusters, "pins": tuple(PRESETS), "plan": ()}


class _NamesAndFiles:
    """Completes an argument with names and with files and folders."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, prefix: str, **_: Any) -> list[str]:
        from argcomplete.completers import FilesCompleter

        files: list[str] = FilesCompleter()(prefix)
        return [*(name for name in self.names if name.startswith(prefix)), *files]
