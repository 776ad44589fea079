"""The checkpoint options of a program: `--save FOLDER --save-every N --keep K --resume`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import checkpoints
from .checkpoint_ranks import CheckpointError
from .executor import Executor
from .step_checkpoints import Checkpoints

KEPT = 2
"""The number of checkpoints to keep by default."""


@dataclass(frozen=True)
class SaveOptions:
    """
    The checkpoint options of a run.

    Args:
        folder: folder for checkpoints, on a disk that all ranks share, or None to write none.
        every: the number of steps between checkpoints; with 0 only the end of the run writes one.
        keep: the number of newest checkpoints to keep.
        resume: whether to resume from the newest checkpoint in the folder, if there is one.
    """

    folder: Path | None = None
    every: int = 0
    keep: int = KEPT
    resume: bool = False

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add the options to a command line."""
        parser.add_argument("--save", metavar="FOLDER", help="folder for checkpoints, on a disk that all ranks share")
        parser.add_argument("--save-every", type=int, metavar="N", help="save after every N steps (only at the end)")
        parser.add_argument("--keep", type=int, metavar="K", help=f"number of checkpoints to keep ({KEPT})")
        parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint, if there is any")

    @staticmethod
    def taken_from(parsed: dict[str, Any]) -> SaveOptions:
        """
        Remove the options from a parsed command line and return them.

        Raises:
            ValueError: an option is wrong or requires another; the message gives the expected option.
        """
        folder, every, keep, resume = (parsed.pop(name) for name in ("save", "save_every", "keep", "resume"))
        if folder is None and (given := [n for n, v in (("--save-every", every), ("--keep", keep)) if v is not None]):
            raise ValueError(f"{given[0]} is an option of checkpoints, which are off; give --save FOLDER too")
        if folder is None and resume:
            raise ValueError("--resume needs --save FOLDER, the folder of the checkpoints")
        for name, number in (("--save-every", every), ("--keep", keep)):
            if number is not None and number < 1:
                raise ValueError(f"{name} {number}: expected a whole number above 0")
        return SaveOptions(Path(folder) if folder is not None else None, every or 0, keep or KEPT, resume)

    def arguments(self) -> list[str]:
        """Return the options as arguments of a command line."""
        if self.folder is None:
            return []
        arguments = ["--save", str(self.folder), "--keep", str(self.keep)]
        arguments += ["--save-every", str(self.every)] if self.every else []
        return [*arguments, "--resume"] if self.resume else arguments

    def verify_folder(self) -> None:
        """
        Create the folder, and check that a run that starts anew has an empty one.

        Raises:
            CheckpointError: the folder has checkpoints, or cannot be created.
        """
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "this is a file" if self.folder.is_file() else str(error.strerror)
            raise CheckpointError(f"--save {self.folder}: {why}; give a folder, which need not exist yet") from error
        if not self.resume and (existing := checkpoints(self.folder)):
            raise CheckpointError(
                f"--save {self.folder}: the folder has checkpoints of another run, the newest is {existing[0]}; give "
                "--resume to continue from it, or another folder"
            )


class Saving:
    """
    Writes and resumes the checkpoints of a run; every rank must call each method.

    Args:
        rate: the learning rate of the run; the optimizer's own if None.
    """

    def __init__(self, options: SaveOptions, executor: Executor, rate: float | None) -> None:
        self._options, self._executor = options, executor
        self._rates = [rate if rate is not None else group["lr"] for group in executor.plan.parameter_groups]
        self._checkpoints = Checkpoints(executor)

    def begin(self) -> int:
        """
        Resume from the newest checkpoint if requested, or if torchrun has restarted the ranks.

        Returns:
            The number of finished steps.

        Raises:
            CheckpointError: checkpoints exist, and none is intact; or they belong to another model or run.
        """
        folder = self._options.folder
        if folder is None:
            return 0
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
            self._options.verify_folder()
        resumed = self._checkpoints.load(folder, with_optimizer=True)
        return resumed.notes.step if resumed is not None else 0

    def after(self, step: int, last: int) -> None:
        """Write a checkpoint if it is due; call this after each step."""
        folder, every = self._options.folder, self._options.every
        if folder is None or not (step == last or (every and step % every == 0)):
            return
        self._checkpoints.save(folder, self._rates, (), extra=None, keep=self._options.keep, asynchronous=False)
