"""`shardwright run`."""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from ..api.calibration.local_cluster import generic_cluster, measured_cluster
from ..api.plan_report import mesh_text
from ..ir.cluster import Cluster
from ..ir.cluster_file import find_cluster
from ..ir.text_file import read_text
from .cli_arguments import TOOL, command_line, refuse_for_planned, told, tool_error
from .cli_console import working
from .cli_plan import planned
from .plan_folder import read_report

PROFILE_SECONDS = 10.0

MOST_RANKS = 1024
"""The maximum number of processes on one machine; a damaged `plan.json` may name any number of ranks."""


def run_command(options: Namespace) -> int:
    """Run the plan in a folder, or plan a step and run it; return the exit code of the job."""
    saving = _saving(options)
    if options.overlap is not None and not (folder := Path(options.overlap).absolute().parent).is_dir():
        raise tool_error(f"--overlap {options.overlap} cannot be written: there is no folder {folder}")
    if Path(options.target).is_dir():
        refuse_for_planned(options, options.target, "cluster", "profile", besides="compile")
        return _run_plan(Path(options.target), options, saving)
    with tempfile.TemporaryDirectory(prefix="shardwright-run-") as folder:
        planned(options, _cluster(options)).save(folder)
        return _run_plan(Path(folder), options, saving)


def _saving(options: Namespace) -> list[str]:
    """Return the program's checkpoint options, after checking that they can work, because planning may take long."""
    names = ("save", "save_every", "keep", "resume")
    if not any(getattr(options, name) for name in names):
        return []
    from ..runtime.checkpoint_ranks import CheckpointError
    from ..runtime.saving import SaveOptions

    with told((ValueError, CheckpointError)):
        saving = SaveOptions.taken_from({name: getattr(options, name) for name in names})
        saving.verify_folder()
    return saving.arguments()


def _cluster(options: Namespace) -> Cluster:
    if options.cluster:
        return find_cluster(options.cluster)
    if options.nproc_per_node is None:
        raise tool_error(
            f"{options.target} is not the folder of a plan, and planning it as a step needs the number of processes",
            "give --nproc-per-node N or --cluster FILE",
        )
    if not options.profile:
        return generic_cluster(options.nproc_per_node)
    with working(f"measuring {options.nproc_per_node} processes for {PROFILE_SECONDS:g} s"):
        return measured_cluster(options.nproc_per_node, PROFILE_SECONDS)


def _run_plan(folder: Path, options: Namespace, saving: list[str]) -> int:
    report = read_report(folder, "ranks")
    ranks = options.nproc_per_node or report["ranks"]
    if ranks != report["ranks"]:
        raise tool_error(
            f"{options.target} is planned for {report['ranks']} ranks (mesh {mesh_text(report)}), but "
            f"--nproc-per-node asks for {ranks}",
            f"omit the option, or plan for a cluster of {ranks} ranks",
        )
    if not 1 <= ranks <= MOST_RANKS:
        message = f"{options.target} is planned for {ranks} ranks; at most {MOST_RANKS} are started on one machine"
        raise tool_error(message, "start it on its hosts with torchrun")
    arguments = ["--steps", str(options.steps), "--seed", str(options.seed), *saving]
    arguments += ["--compile"] if hasattr(options, "compile") else []
    arguments += ["--overlap", os.path.abspath(options.overlap)] if options.overlap is not None else []
    # The path is absolute, because each rank reads the file, and no command takes it for an option.
    path = folder.absolute() / "program.py"
    try:
        read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        again = command_line("plan", "STEP", "--cluster", "FILE", "--out", folder)
        raise tool_error(f"cannot read the program {path}: {reason}", f"write one with: {again}") from error
    failed = run_ranks_of(ranks, str(path), arguments)
    if options.overlap is not None and not failed and (Path(options.target) / "step.mlir").is_file():
        comparison = command_line("simulate", options.target, "--measured", options.overlap)
        print(f"comparison with the prediction: {comparison}")
    return failed


def run_ranks_of(ranks: int, program: str, arguments: list[str]) -> int:
    """Run a program on `ranks` local processes, as torchrun does; DiagnosticError names the rank that failed."""
    from ..runtime.local_job import run_local_job

    try:
        failure = run_local_job(ranks, program, arguments)
    except KeyboardInterrupt:
        print(f"{TOOL}: interrupted, and all ranks have ended", file=sys.stderr)
        return 130
    if failure is not None:
        rank, code = failure
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise tool_error(f"rank {rank} ended with {how}; its message is above")
    return 0
