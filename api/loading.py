"""`step.loader`: a DataLoader that loads each rank's own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ..ir.not_supported import ITERABLE
from ..ir.plan_options import refusal
from ..lowering.capture.calling import batch_items
from ..runtime.agreement import verify_alike
from ..runtime.batches import LocalRows, ShareSampler, batch_rows, items_of, no_rows
from ..runtime.executor import Executor, RankProgram
from ..runtime.plan import Plan, PlanError
from .variants import Variants


def share_loader(
    executor: Executor,
    variants: Variants,
    dataset: Dataset[Any],
    seed: int | None,
    *,
    drop_last: bool,
    options: Mapping[str, Any],
) -> ShareLoader:
    """Return the loader of this rank; see `DistributedStep.loader`."""
    if isinstance(dataset, IterableDataset):
        raise PlanError(f"loader() was given {type(dataset).__name__}, an IterableDataset; {ITERABLE.instead}")
    length, count = len(dataset), variants.form.rows  # pyright: ignore[reportArgumentType]
    given = dict(options)
    shuffle = given.pop("shuffle", None)
    # Compare first, so that an argument that only one rank was given is an error on all ranks.
    order = f"samples={length} seed={seed} shuffle={shuffle} drop_last={drop_last}"
    verify_alike("arguments of step.loader()", order)
    if why := _refusal(given, seed, shuffle, count):
        raise PlanError(f"step.loader() was given {why}")
    given.pop("batch_size", None)
    seed = seed if shuffle is not False else None
    rows = _own_rows(executor.main)
    left = 0 if drop_last else length % count
    last = _last_rows(variants, left) if left else None
    last = range(left) if left and rows is None else last
    batches = ShareSampler(length, count, rows if rows is not None else range(count), seed, last)
    collate = _Collate(executor.plan, given.pop("collate_fn", default_collate), rows is not None)
    own_last = left if left and _own_rows(variants.with_rows(left)[0]) is not None else None
    return ShareLoader(dataset, batches, collate, own_last, given)


def _refusal(options: Mapping[str, Any], seed: int | None, shuffle: bool | None, count: int) -> str | None:
    """Return why the loader would ignore an option of a DataLoader, if it would ignore one."""
    if seed is not None and (why := refusal({"seed": seed})) is not None:
        return why
    if (shuffle and seed is None) or (shuffle is False and seed):
        return f"shuffle={shuffle} and seed={seed}: seed=None leaves samples in order"
    if (size := options.get("batch_size", count)) != count:
        return (
            f"batch_size={size!r}, but the step is planned for batches of {count} rows on all ranks together: leave it"
            " out, or pass parallelize an example of another size"
        )
    if others := [name for name in ("sampler", "batch_sampler", "generator") if options.get(name) is not None]:
        return (
            f"{others[0]}=, but it decides itself which rows a rank loads: give it seed= or shuffle=False, or reorder"
            " the data set; a DataLoader of your own can use step.sampler()"
        )
    return None


def _own_rows(program: RankProgram) -> range | None:
    """Return the rows that this rank computes on, or None if the items of a batch are split differently."""
    try:
        return batch_rows(program.plan, program.comm.rank, program.plans)[1]
    except PlanError:
        return None


def _last_rows(variants: Variants, left: int) -> range:
    """Return the rows that this rank loads of the incomplete last batch of an epoch, which has `left` rows."""
    programs = variants.with_rows(left)
    if len(programs) != 1:
        raise PlanError(
            f"the last batch of an epoch has {left} rows, but {len(programs)} shapes with that many rows are declared: "
            "declare one, with parallelize(..., shapes=[batch]), or leave that batch out, with drop_last=True"
        )
    rows = _own_rows(programs[0])
    return rows if rows is not None else range(left)


class ShareLoader(DataLoader[Any]):
    """
    A DataLoader that marks the incomplete last batch of an epoch with its number of rows, and has a position to save.

    Args:
        last: the number of rows of the incomplete last batch if its rows are marked as this rank's own, or None if not.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batches: ShareSampler,
        collate: Callable[..., Any],
        last: int | None,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(dataset, batch_sampler=batches, collate_fn=collate, **options)
        self._last, self._whole = last, batches.length // batches.batch
        self._batches, self._given = batches, 0
        self._resumed: Mapping[str, int] | None = None

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and the number of batches that were loaded in it."""
        return {"epoch": self._batches.epoch, "batch": self._given}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the saved number of batches in the saved epoch; other epochs start at their first batch."""
        self._resumed = state
        self._batches.set_epoch(state["epoch"])
        self._given = state["batch"]

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        resumed, self._resumed = self._resumed, None
        goes_on = resumed is not None and resumed["epoch"] == self._batches.epoch
        self._batches.first = resumed["batch"] if resumed is not None and goes_on else 0
        for number, batch in enumerate(super().__iter__(), self._batches.first):
            self._given = number + 1
            if number < self._whole or not isinstance(batch, LocalRows):
                yield batch
            else:
                yield replace(batch, count=self._last) if self._last is not None else items_of(batch)


@dataclass(frozen=True)
class _Collate:
    """A function from samples to a batch for the step: a rank's own rows, perhaps none, or all rows."""

    plan: Plan
    of_samples: Callable[[list[Any]], Any]
    is_own: bool

    def __call__(self, samples: list[object]) -> object:
        batch: Any = self.of_samples(samples) if samples else no_rows(self.plan)
        return LocalRows(batch_items(batch)) if self.is_own else batch
