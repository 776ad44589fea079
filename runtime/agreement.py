"""Comparison, by digests, of weights, seeds and batches that must be equal on all ranks of a job."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from .all_ranks import Given, from_rank_0, of_all_ranks
from .batches import Batch, LocalRows, batch_rows, items_of
from .executor import Executor
from .faults import ACTIVITY
from .groups import job_rank, world_size
from .plan import Plan, PlanError
from .recording import named_tensors

LOG = logging.getLogger("shardwright")

SAMPLED = 1 << 16
"""The number of elements, evenly spaced, in the digest of a batch item."""

_LISTED = 3


Key = TypeVar("Key", bound=Hashable)

_Row: TypeAlias = tuple[str, tuple[int, ...], str]
"""A tensor's name, shape and dtype."""


def verify_alike(what: str, mine: Hashable) -> None:
    """
    Check that all ranks were given the same value; every rank must call this.

    Raises:
        PlanError: on every rank, if any value differs; the message names the values of all ranks.
    """
    everyone = of_all_ranks(mine)
    if len(set(everyone)) > 1:
        raise PlanError(f"the ranks were given different {what}: {_listed(everyone)}; give all ranks the same")


def _listed(values: Sequence[object]) -> str:
    """Group equal values, with the ranks that have each of them."""
    ranks: dict[object, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(
        f"{value} on rank{'s' if len(on) > 1 else ''} {', '.join(map(str, on))}" for value, on in ranks.items()
    )


def share_random_state() -> None:
    """Set the state of torch's random numbers on every rank to rank 0's state; every rank must call this."""
    torch.set_rng_state(torch.from_numpy(from_rank_0(torch.get_rng_state().numpy())))


def made_by_rank_0(make: Callable[[], Given], failure: Callable[[Exception], PlanError]) -> Given:
    """
    Return the result of a function that only rank 0 calls, for example to plan; every rank must call this.

    Args:
        failure: function from an error of `make` to the error of all ranks.

    Raises:
        PlanError: on every rank, if `make` failed.
    """
    outcome: Any = None
    if job_rank() == 0:
        try:
            outcome = make()
        except Exception as error:
            outcome = failure(error)
    outcome = from_rank_0(outcome, patient="plan")
    if isinstance(outcome, PlanError):
        raise outcome
    return outcome


def share_weights(model: nn.Module, device: torch.device) -> bool:
    """
    Copy the weights of rank 0's module to the module of every rank, as DDP does; every rank must call this.

    Ranks that already have equal weights send nothing.

    Args:
        device: device of this rank, over which the weights travel.

    Returns:
        Whether any rank had different weights.

    Raises:
        PlanError: the modules differ in the names, shapes or dtypes of their parameters and buffers.
    """
    if world_size() == 1:
        return False
    # Take each tensor once, under the first of its names.
    first: dict[int, str] = {}
    tensors = {n: tensor for n, tensor in named_tensors(model).items() if first.setdefault(id(tensor), n) == n}
    everyone = of_all_ranks(
        [
            (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), digest(tensor))
            for name, tensor in tensors.items()
        ]
    )
    if all(rows == everyone[0] for rows in everyone):
        return False
    for rank, rows in enumerate(everyone):
        _verify_same_forms([row[:3] for row in everyone[0]], [row[:3] for row in rows], rank)
    with torch.no_grad():
        for tensor in tensors.values():
            whole = tensor.detach().to(device).contiguous()
            ACTIVITY.wait("the weights of rank 0", partial(dist.broadcast, whole, src=0))
            tensor.copy_(whole)
    if job_rank() == 0:
        LOG.info("the ranks passed modules with different weights; all ranks now use the weights of rank 0")
    return True


def _verify_same_forms(first: Sequence[_Row], other: Sequence[_Row], rank: int) -> None:
    if first == other:
        return
    only = [row for row in first if row not in other], [row for row in other if row not in first]
    details = (", ".join(f"{name} {list(shape)} {dtype}" for name, shape, dtype in rows[:_LISTED]) for rows in only)
    here, there = (text or "nothing more" for text in details)
    raise PlanError(
        f"the models of the ranks differ: rank 0 has {here}; rank {rank} has {there}; build the same model on all ranks"
    )


def digest(tensor: torch.Tensor, most: int | None = None) -> str:
    """
    Return a digest of the numbers of a tensor.

    Args:
        most: upper bound on the number of elements in the digest, which are evenly spaced; all elements if None.
    """
    flat = tensor.detach().reshape(-1)
    if most is not None and flat.numel() > most:
        flat = flat[:: -(-flat.numel() // most)]
    numbers = flat.contiguous().cpu().view(torch.uint8).numpy()
    return hashlib.blake2b(numbers.tobytes(), digest_size=8).hexdigest()


def verify_replicas(executor: Executor) -> None:
    """
    Check that parameters and buffers are the same on all ranks that hold the same part; every rank must call this.

    Raises:
        PlanError: on every rank, if any of them differ.
    """
    plan, rank = executor.plan, executor.comm.rank
    values = [value for value in plan.inputs if value.role in ("param", "buffer")]
    mine = {(value.name, str(value.slices(plan.mesh, rank))): digest(executor.local(value)) for value in values}
    if (found := differing(mine)) is not None:
        (name, _), one, other = found
        raise PlanError(
            f"the ranks {one} and {other} initialized the weights {name!r} differently: seed the random "
            "generators that the model uses outside torch, or build the module and pass it, so that all ranks "
            "get the weights of rank 0"
        )


def differing(mine: Mapping[Key, str]) -> tuple[Key, int, int] | None:
    """Return the first key whose value differs between ranks, with two such ranks; every rank must call this."""
    first: dict[Key, tuple[int, str]] = {}
    for rank, values in enumerate(of_all_ranks(mine)):
        for key, value in values.items():
            holder, expected = first.setdefault(key, (rank, value))
            if value != expected:
                return key, holder, rank
    return None


@dataclass
class GivenAlike:
    """
    Compares the inputs of all ranks in the first steps of a job.

    Ranks that pass the global batch must all pass the same batch. Ranks that pass their own rows must pass the same
    items if they compute on the same rows.

    Args:
        plan, rank: plan of this rank's stage, and this rank's place in the stage.
        plans: plans of all stages.
        steps: the number of steps to compare.
        what: name of a step in messages.
    """

    plan: Plan
    rank: int
    plans: Sequence[Plan]
    steps: int
    what: str = "step"
    done: int = 0

    def verify(self, batch: Batch | LocalRows, rates: Sequence[float] = ()) -> None:
        """
        Compare the inputs of the next step; every rank must call this.

        Raises:
            PlanError: on every rank, if anything differs.
        """
        self.done += 1
        if self.done > self.steps or world_size() == 1:
            return
        step = f"{self.what} {self.done}: the ranks were given different"
        shown = tuple(rates) if len(rates) > 1 else next(iter(rates), None)
        everyone = of_all_ranks((shown, *given(self.plan, self.rank, self.plans, batch)))
        by_rank = [rate for rate, _, _ in everyone]
        if len(set(by_rank)) > 1:
            raise PlanError(f"{step} learning rates: {_listed(by_rank)}; give all ranks the same")
        first: dict[object, int] = {}
        for rank, (_, rows, items) in enumerate(everyone):
            other = first.setdefault(rows, rank)
            names = [name for name, numbers in items.items() if everyone[other][2].get(name) != numbers]
            if names:
                raise PlanError(f"{step} {_difference(rows, other, rank, names)}")


def given(
    plan: Plan, rank: int, plans: Sequence[Plan], batch: Batch | LocalRows
) -> tuple[tuple[int, int] | None, dict[str, str]]:
    """
    Return the rows that `rank` of a plan has in its batch (None for the global batch) and the digests of the items.

    Args:
        plans: plans of all stages.
    """
    items = {name: digest(item, SAMPLED) for name, item in items_of(batch).items() if isinstance(item, torch.Tensor)}
    if not isinstance(batch, LocalRows):
        return None, items
    rows = batch_rows(plan, rank, plans)[1]
    return (rows.start, rows.stop), items


def _difference(rows: tuple[int, int] | None, one: int, other: int, names: Iterable[str]) -> str:
    """Describe which inputs of two ranks differ, and the remedy."""
    items = ", ".join(map(repr, names))
    if rows is None:
        return (
            f"global batches: items {items} of ranks {one} and {other} differ; step() takes the whole batch, the same "
            "on every rank: load the same batch on all ranks, or let each rank load its own rows, by "
            "step.loader(dataset), or marked by step.local(rows)"
        )
    return (
        f"rows: ranks {one} and {other} both compute on rows {rows[0]} to {rows[1]} of the batch, and items {items} of "
        "their batches differ; take the indices from step.sampler, or the batches from step.loader"
    )
