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
"""So many checkpoints stay by default."""


@dataclass(frozen=True)
class SaveOptions:
    """
    The checkpoint options of a run.

    Args:
        folder: for checkpoints, on a disk that all ranks share; None for none.
        every: number of steps between checkpoints; 0 writes one at the end only.
        keep: how many of the newest are kept.
        resume: whether the run resumes from the newest one in the folder, if there is any.
    """

    folder: Path | None = None
    every: int = 0
    keep: int = KEPT
    resume: bool = False

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add the options to a command line."""
        parser.add_argument("--save", metavar="FOLDER", help="write checkpoints there, on a disk that all ranks share")
        parser.add_argument("--save-every", type=int, metavar="N", help="also after every N steps (only at the end)")
        parser.add_argument("--keep", type=int, metavar="K", help=f"how many checkpoints to keep ({KEPT})")
        parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint, if there is any")

    @staticmethod
    def taken_from(parsed: dict[str, Any]) -> SaveOptions:
        """
        Take the options out of what a command line says.

        Raises:
            ValueError: they do not fit together; the message says what was expected.
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
        """As a command line has them."""
        if self.folder is None:
            return []
        found = ["--save", str(self.folder), "--keep", str(self.keep)]
        found += ["--save-every", str(self.every)] if self.every else []
        return [*found, "--resume"] if self.resume else found

    def verify_folder(self) -> None:
        """
        Make the folder, and check that a run which begins anew has one of its own.

        Raises:
            CheckpointError: it has checkpoints, or cannot be made.
        """
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "this is a file" if self.folder.is_file() else str(error.strerror)
            raise CheckpointError(f"--save {self.folder}: {why}; give a folder, which need not exist yet") from error
        if not self.resume and (found := checkpoints(self.folder)):
            raise CheckpointError(
                f"--save {self.folder}: the folder has checkpoints of another run, the newest is {found[0]}; give "
                "--resume to continue from it, or another folder"
            )


class Saving:
    """
    Writes and resumes the checkpoints of a run; every rank must call each method.

    Args:
        rate: the learning rate of the run; None is the optimizer's own.
    """

    def __init__(self, options: SaveOptions, executor: Executor, rate: float | None) -> None:
        self._options, self._executor = options, executor
        groups = executor.plan.parameter_groups
        self._rates = [rate if rate is not None else group["lr"] for group in groups]
        self._checkpoints = Checkpoints(executor)

    def begin(self) -> int:
        """
        Go on from the newest checkpoint, where that is asked for or torchrun has started the ranks again.

        Returns:
            How many steps have been made.

        Raises:
            CheckpointError: there are checkpoints, and none is intact; or they are of another model or run.
        """
        folder = self._options.folder
        if folder is None:
            return 0
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
            self._options.verify_folder()
        found = self._checkpoints.load(folder, with_optimizer=True)
        return found.notes.step if found is not None else 0

    def after(self, step: int, last: int) -> None:
        """After a step: write a checkpoint if one is due."""
        folder, every = self._options.folder, self._options.every
        if folder is None or not (step == last or (every and step % every == 0)):
            return
        self._checkpoints.save(folder, self._rates, (), extra=None, keep=self._options.keep, asynchronous=False)
