"""`shardwright profile`: measures the ranks of a job, and writes a cluster file with the fitted numbers."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..ir.cluster_file import cluster_toml
from ..ir.mesh import Mesh
from ..runtime.faults import ACTIVITY, is_lost_peer
from ..runtime.groups import UNWATCHED
from ..runtime.lifetime import die_with_parent
from ..runtime.profile.journal import Journal, ProfileError
from ..runtime.profile.result import Output, Profile, fit_text
from ..runtime.profile.session import ProfileRequest, profile_here, profile_rank, reason
from ..runtime.rank_devices import agree_on_device, usual_backend
from ..runtime.spawn import RankError, run_ranks
from .cli_arguments import mesh_of, tool_error
from .cli_console import print_report
from .diagnostics import DiagnosticError

AXIS = "gpu"
"""The default name of the mesh's axis."""

_MOST_LISTED = 5
"""The number of missing measurements that a message names; the file names all."""

_WRITE_SECONDS = 15.0
"""Seconds between writes of intermediate results in a torchrun job, because its rank 0 may be lost."""


def profile_command(options: Namespace) -> int:
    """Measure, write the cluster file, and print the quality of the fits."""
    path = None if options.output == "-" else Path(options.output)
    if path is not None:
        _check_writable(path)
    if "RANK" in os.environ:
        return _join(options, path)
    if options.nproc_per_node is None:
        raise tool_error(
            "the number of ranks to measure is missing",
            f"give --nproc-per-node N, or start it on every host with: torchrun ... -m {__package__}.cli profile",
        )
    return _spawn(options, path)


def _check_writable(path: Path) -> None:
    """Raise DiagnosticError if the output cannot be written, before anything is measured."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise tool_error(f"cannot write {path}: {error.strerror}", "name a file in a writable folder") from error
    if path.is_dir():
        raise tool_error(f"cannot write {path}: it is a folder", "name a file")


def progress_file(path: Path) -> Path:
    """Return the path of the intermediate measurements, next to the output."""
    return path.with_name(f"{path.name}.progress.json")


def _spawn(options: Namespace, path: Path | None) -> int:
    ranks: int = options.nproc_per_node
    request, output = _asked(options, ranks, "cpu")
    with tempfile.TemporaryDirectory(prefix="shardwright-profile-") as folder:
        progress = progress_file(path) if path is not None else Path(folder, "progress.json")
        request = replace(request, progress=progress)
        try:
            (journal, *_) = run_ranks(_spawned, ranks, request, timeout=120 + 10 * request.seconds)
        except RankError as error:
            raise _partial(output, progress, path, str(error).splitlines()[0]) from error
    return _finish(output, journal, path)


def _spawned(request: ProfileRequest) -> Journal:
    """Measure in one process of this machine."""
    with _bar(dist.get_rank() == 0) as bar:
        return profile_here(request, bar)


def _join(options: Namespace, path: Path | None) -> int:
    """Measure the ranks of this process's torchrun job."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    store, rank, world = next(rendezvous("env://", timeout=UNWATCHED))
    store = PrefixStore("profile", store)
    device = agree_on_device("profile", store, rank, world)
    request, output = _asked(options, world, device.type)
    request = replace(request, progress=progress_file(path) if path is not None else None)
    signal.signal(signal.SIGTERM, _ended)
    ACTIVITY.timeout = UNWATCHED
    dist.init_process_group(usual_backend(device), store=store, rank=rank, world_size=world, timeout=UNWATCHED)
    try:
        with _bar(rank == 0) as bar:
            bar.output, bar.path = output, path
            journal = profile_rank(request, device, bar)
            dist.barrier()
    except (RuntimeError, SystemExit) as error:
        _leave(error, rank, output, request, path)
    dist.destroy_process_group()
    return _finish(output, journal, path) if rank == 0 else 0


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(f"ended by {signal.Signals(number).name}: another rank was lost, or somebody ended the job")


def _leave(error: BaseException, rank: int, output: Output, request: ProfileRequest, path: Path | None) -> NoReturn:
    """End a rank of a failed job: rank 0 writes partial results, and a rank that failed itself prints its error."""
    details = reason(error)
    if rank == 0 and request.progress is not None and not isinstance(error, ProfileError):
        _say(_partial(output, request.progress, path, details))
    elif not is_lost_peer(error) and (rank == 0 or not isinstance(error, ProfileError | SystemExit)):
        _say(tool_error(f"rank {rank}: {details}"))
    # Threads that wait for a lost rank can only be ended this way.
    os._exit(1)


def _say(error: DiagnosticError) -> None:
    print(error.diagnostic, file=sys.stderr, flush=True)


def _asked(options: Namespace, ranks: int, device: str) -> tuple[ProfileRequest, Output]:
    """Return the requested measurements on `ranks` ranks, and the output that turns them into a cluster."""
    # Imported here, because processes started by this one receive their ops and do not need these modules.
    from ..api.calibration.local_cluster import job_profile
    from ..api.calibration.op_samples import ops_of_plans

    mesh = _mesh(options.mesh, ranks)
    if options.ops_of:
        wanted = ops_of_plans(options.ops_of, options.cluster)
        base, samples = wanted.cluster, wanted.samples
        if base.mesh.device_count != ranks:
            raise tool_error(
                f"the plan is for {base.mesh.device_count} ranks, but the job has {ranks}",
                "measure as many ranks as the plan has",
            )
        request = ProfileRequest(
            mesh, samples, options.seconds, network=False, resume=options.resume, rehearsals=wanted.rehearsals
        )
        return request, Output(base.name, samples, base)
    name = f"local-{ranks}" if options.output == "-" else Path(options.output).stem
    return job_profile(mesh, device, options.seconds, name, resume=options.resume)


def _mesh(text: str | None, ranks: int) -> Mesh:
    if text is None:
        return Mesh.of(**{AXIS: ranks})
    mesh = mesh_of(text)
    if mesh.device_count != ranks:
        raise tool_error(
            f"--mesh {text} has {mesh.device_count} ranks, but the job has {ranks}", "the sizes must multiply to that"
        )
    return mesh


@dataclass
class _Bar:
    """A progress bar of a profile, which under torchrun also writes intermediate results periodically."""

    progress: Progress
    task: int
    output: Output | None = None
    path: Path | None = None
    written: float = 0.0

    def at(self, done: float, what: str) -> None:
        """Show the finished fraction of the work, and the next measurement."""
        self.progress.update(self.task, completed=done, description=what[:60])  # pyright: ignore[reportArgumentType]

    def saved(self, journal: Journal) -> None:
        """Write the cluster file if the last write is long ago and the measurements suffice."""
        if self.output is None or self.path is None or time.monotonic() - self.written < _WRITE_SECONDS:
            return
        try:
            self.output.write(replace(journal, trouble=journal.trouble or "not yet measured"), self.path)
        except ProfileError:
            return
        self.written = time.monotonic()


@contextmanager
def _bar(shown: bool) -> Generator[_Bar, None, None]:
    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        yield _Bar(progress, progress.add_task("measuring", total=1.0))


def _partial(output: Output, progress: Path, path: Path | None, why: str) -> DiagnosticError:
    """Write the partial results of a profile that ended early, and return the error that names the missing ones."""
    if not progress.exists():
        return tool_error(f"{why}; nothing was measured yet")
    try:
        journal = replace(Journal.load(progress), trouble=why)
        profile = output.profile(journal) if path is None else output.write(journal, path)
    except ProfileError as error:
        return tool_error(f"{why}; {error}")
    missing = [what for what, reason in profile.missing.items() if reason == why]
    listed = ", ".join(missing[:_MOST_LISTED]) + (", ..." if len(missing) > _MOST_LISTED else "")
    where = f"{path} has the measurements before that" if path is not None else "nothing was written"
    hint = "continue with the same command and --resume" if path is not None else "name a file with -o to resume from"
    what = f"{len(missing)} measurements are missing: {listed}" if missing else "only rounds are missing"
    return tool_error(f"{why}; {where}; {what}", hint)


def _finish(output: Output, journal: Journal, path: Path | None) -> int:
    if path is None:
        profile = output.profile(journal)
        sys.stdout.write(cluster_toml(profile.cluster))
    else:
        profile = output.write(journal, path)
        progress_file(path).unlink(missing_ok=True)
    print_report(_table(profile), stderr=path is None)
    return 0


def _table(profile: Profile) -> Table:
    table = Table("fitted", "numbers, and relative errors: the middle one and the largest", title=profile.cluster.name)
    for fit in profile.fits:
        table.add_row(fit.what, fit_text(fit))
    seen = profile.cluster.interference
    slower = f"compute takes {seen.compute:.2f} times as long, communication {seen.communication:.2f}"
    table.add_row("while the other runs", slower)
    if seen.delays:
        late = (f"{1e3 * delay:.2g} ms after {1e3 * computed:.2g}" for computed, delay in seen.delays)
        table.add_row("late after a wait", ", ".join(late))
    if profile.missing:
        table.caption = f"{len(profile.missing)} measurements were left out; the file says which and why"
    return table
