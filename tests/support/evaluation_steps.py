"""Models with dropout, batch norm and tied weights, planned in many ways and evaluated between training steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plan_keywords import with_plan
from split_cluster import one_useless_cluster, split_cluster
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.data import TensorDataset

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.runtime.batches import ShareSampler
from shardwright.runtime.plan import PlanError

HYBRID = Path(__file__).parent / "hybrid_pins.toml"
ROWS, WIDTH, CLASSES, LENGTH = 16, 12, 5, 6
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-2)
COUNTS = (ROWS, 5)
"""Numbers of rows of the evaluated batches: as in training, and a partial batch that the ranks do not divide evenly."""
MANY = (ROWS, 5, 3, 1, 23)
"""Also numbers of rows below the number of ranks and above the rows of training."""


class Classifier(nn.Module):
    """Layers with batch norm and dropout; `forward` returns a dict of scores and the values they are computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self._layer(WIDTH if index == 0 else 16) for index in range(3))
        self.head = nn.Linear(16, CLASSES)

    @staticmethod
    def _layer(inputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3))

    def forward(self, inputs: torch.Tensor) -> dict[str, Any]:
        """Return scores of classes, and a tuple of features and constants."""
        values = inputs
        for layer in self.layers:
            values = layer(values)
        return {"scores": self.head(values), "more": (values, values.sum(1), "features", 3)}


class Language(nn.Module):
    """A small language model with tied embeddings, which returns its loss if it is given labels."""

    def __init__(self, block: Callable[[], nn.Module], layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.blocks = nn.Sequential(*(block() for _ in range(layers)))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Return the scores of the next tokens, preceded by the loss if there are labels."""
        scores = self.head(self.blocks(self.embedding(tokens)))
        if labels is None:
            return (scores,)
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-100), scores


class Block(nn.Module):
    """Attention and a multi-layer perceptron, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), nn.Linear(16, 48)
        self.perceptron = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.dropout = nn.Dropout(0.2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        rows, length, width = values.shape
        q, k, v = (
            each.view(rows, length, 4, width // 4).transpose(1, 2)
            for each in self.attention(self.norm(values)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        values = values + self.dropout(mixed.transpose(1, 2).reshape(rows, length, width))
        return values + self.dropout(self.perceptron(values))


def perceptron() -> nn.Sequential:
    """Return a block without attention, for plans that take long to search."""
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 16))


def classifier_loss(output: Mapping[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the scores."""
    return nn.functional.cross_entropy(output["scores"], labels)


def classifier_metrics(output: Mapping[str, Any], labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a mean and a sum over the batch."""
    right = output["scores"].argmax(-1) == labels
    return {"accuracy": right.double().mean(), "right": right.sum()}


def language_metrics(output: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the fraction of correct predictions among the labels that are not ignored."""
    right = (output[1].argmax(-1) == batch["labels"]) & (batch["labels"] >= 0)
    return {"right": right.double().sum() / (batch["labels"] >= 0).sum()}


def classified(rows: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch for the classifier."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(CLASSES, (rows,), generator=generator)


def spoken(rows: int, number: int, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Return a batch for the language model; some labels of the first rows are ignored."""
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(20, (rows, length), generator=generator)
    labels[: (rows + 1) // 2, : length // 2] = -100
    return {"tokens": torch.randint(20, (rows, length), generator=generator), "labels": labels}


@dataclass(frozen=True)
class Kind:
    """A model with its loss, metrics, batches and optimizer."""

    model: Callable[[], nn.Module]
    loss: Callable[..., Any] | None
    metrics: Callable[..., Any]
    batch: Callable[..., Any]
    optimizer: Callable[..., Any]


KINDS = {
    "classifier": Kind(Classifier, classifier_loss, classifier_metrics, classified, SGD),
    "language": Kind(partial(Language, Block, 2), None, language_metrics, spoken, ADAMW),
    "words": Kind(partial(Language, perceptron, 1), None, language_metrics, spoken, ADAMW),
}


@dataclass(frozen=True)
class Case:
    """
    A way to plan a model.

    Args:
        options: keywords of `parallelize`.
        declared: number of rows of a second shape for training; 0 for none.
        from_function: whether the model is given as a function.
        counts: numbers of rows of the evaluated batches.
        cluster: function from the mesh to the cluster.
    """

    kind: str
    mesh: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declared: int = 0
    from_function: bool = False
    counts: tuple[int, ...] = COUNTS
    cluster: Callable[[Mesh], Cluster] = split_cluster


@dataclass
class OneDevice:
    """The training of a model on one device."""

    kind: Kind
    model: nn.Module
    steps: int = 0

    def __post_init__(self) -> None:
        self.optimizer = self.kind.optimizer(self.model.parameters())

    def computed(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
        """Return the loss, the metrics and the output of the model."""
        if self.kind.loss is None:
            output = self.model(**batch)
            return output[0], self.kind.metrics(output, batch), output
        output = self.model(*batch[:-1])
        return self.kind.loss(output, batch[-1]), self.kind.metrics(output, batch[-1]), output

    def step(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Train one step; return the loss and the metrics."""
        self.model.train()
        self.optimizer.zero_grad()
        with sw.counter_random(0, self.steps):
            loss, metrics, _ = self.computed(batch)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.detach(), metrics

    @torch.no_grad()
    def evaluate(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
        """Evaluate in eval mode; return the loss, the metrics and the output."""
        self.model.eval()
        return self.computed(batch)


def checked(case: Case) -> list[str]:
    """Return the differences between a case and the same training on one device."""
    kind = KINDS[case.kind]
    model = _made(kind)
    here = OneDevice(kind, copy.deepcopy(model))
    step = planned(case, kind, model)
    wrong: list[str] = []
    for number in range(4):
        before = torch.get_rng_state()
        if number in (1, 3):
            wrong += compared_evaluations(step, here, kind, number, case.counts)
        batch = kind.batch(case.declared if number == 2 and case.declared else ROWS, 100 + number)
        loss = step(batch)
        if not torch.equal(before, torch.get_rng_state()):
            wrong.append("the random numbers of the user")
        expected, metrics = here.step(batch)
        wrong += differing(f"loss of step {number}", loss, expected)
        wrong += differing(f"metrics of step {number}", step.metrics, metrics)
    for name, value in here.model.state_dict().items():
        wrong += differing(f"the trained {name}", step.gather(name), value)
    return wrong


def planned(case: Case, kind: Kind, model: nn.Module) -> DistributedStep:
    """Return the distributed step of a case."""
    model_or_function: Any = partial(_made, kind) if case.from_function else model
    shapes = [kind.batch(case.declared, 1)] if case.declared else []
    return sw.parallelize(
        model_or_function,
        kind.loss,
        kind.optimizer,
        kind.batch(ROWS, 0),
        case.cluster(parse_mesh(case.mesh)),
        metrics=kind.metrics,
        shapes=shapes,
        **with_plan(case.options),
    )


def _made(kind: Kind) -> nn.Module:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return kind.model()
    finally:
        torch.set_default_dtype(before)


def compared_evaluations(
    step: DistributedStep, here: OneDevice, kind: Kind, number: int, counts: tuple[int, ...]
) -> list[str]:
    """Compare evaluations and predictions with one device; return the differences."""
    wrong: list[str] = []
    metrics_of_training = step.metrics
    for rows in counts:
        batch = kind.batch(rows, 10 * number + rows)
        loss, metrics, output = here.evaluate(batch)
        evaluation = step.evaluate(batch)
        wrong += differing(f"loss of {rows} rows", evaluation.loss, loss)
        wrong += differing(f"metrics of {rows} rows", evaluation.metrics, metrics)
        wrong += differing(f"output of {rows} rows", step.predict(batch), output)
        bare = {"tokens": batch["tokens"]} if isinstance(batch, dict) else batch[:-1]
        with torch.no_grad():
            expected = here.model(**bare) if isinstance(bare, dict) else here.model(*bare)
        wrong += differing(f"output of {rows} rows without labels", step.predict(bare), expected)
        part = step.predict(bare, part="rows")
        if len(part.rows):
            mine = rows_of(expected, slice(part.rows.start, part.rows.stop))
            wrong += differing(f"own rows {part.rows} of {rows}", part.output, mine)
    if differing("", step.metrics, metrics_of_training):
        wrong.append("metrics of training")
    return wrong


def rows_of(output: Any, rows: slice) -> Any:
    """Return some rows of all tensors of an output."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor[rows], output)


def differing(what: str, found: Any, expected: Any) -> list[str]:
    """Return texts that name the differences between two outputs."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    (mine, form), (theirs, wanted) = tree_flatten(found), tree_flatten(expected)
    if form != wanted:
        return [f"rank {rank}: {what} is {form}, expected {wanted}"]
    for one, other in zip(mine, theirs, strict=True):
        is_tensor = isinstance(other, torch.Tensor)
        same = torch.allclose(one, other.to(one.dtype), rtol=1e-10, atol=1e-10) if is_tensor else one == other
        if not same or (is_tensor and (one.shape, one.dtype) != (other.shape, other.dtype)):
            return [f"rank {rank}: {what} is {one}, expected {other}"]
    return []


def all_checked(cases: Mapping[str, Case]) -> dict[str, list[str]]:
    """Return the differences of each case on this rank."""
    differences: dict[str, list[str]] = {}
    for name, case in cases.items():
        try:
            differences[name] = checked(case)
        except Exception as error:
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error
    return differences


PIPELINES = {
    "accumulated": "prepare,search-strategy,program{parts=4},finish",
    "in stages": "prepare,partition-stages{stages=2},search-strategy,"
    "program{mode=pipeline parts=4 schedule=1f1b},finish",
    "in stages of two chunks": "prepare,partition-stages{stages=2 chunks=2},search-strategy,"
    "program{mode=pipeline parts=4 schedule=interleaved-1f1b},finish",
}


def cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases that are tested on several ranks."""
    for pins in ("dp", "zero3", "tp"):
        yield f"classifier on 2, {pins}", Case("classifier", "2", {"pins": pins}, declared=5)
    searched = {"pins": "zero3", "algorithm": "auto"}
    yield "classifier on 2, zero3 of a searched plan", Case("classifier", "2", searched, declared=5)
    yield "classifier on 2, searched", Case("classifier", "2", declared=3, counts=MANY)
    without_first = partial(Case, mesh="3", declared=5, counts=MANY, cluster=one_useless_cluster)
    yield "classifier on 2 of 3", without_first("classifier")
    yield "language on 2 of 3, in stages", without_first("language", options={"stages": 2, "micro_batches": 4})
    accumulated = {"stages": 1, "micro_batches": 2, "duplex": "no"}
    yield "language on 2 of 3, accumulated", without_first("language", options=accumulated)
    yield "words on 2 of 3, duplex", without_first("words", options={"duplex": "yes"})
    two_shares = {"algorithm": "eliminate", "ratios": "0.7,0.3"}
    yield "classifier on 2, uneven", Case("classifier", "2", two_shares, declared=5)
    yield "language on 2, zero3 of a function", Case("language", "2", {"pins": "zero3"}, from_function=True)
    yield "language on 2, tp", Case("language", "2", {"pins": "tp"}, declared=7)
    yield "language on 2, uneven zero3", Case("language", "2", {"pins": "zero3", "ratios": "0.62,0.38"}, declared=5)
    for name, pipeline in PIPELINES.items():
        yield f"language on 2, {name}", Case("language", "2", {"pipeline": pipeline}, declared=5)
    yield "language on 2, in stages as searched", Case("language", "2", {"stages": 2}, declared=6, counts=MANY)
    for kind in ("classifier", "language"):
        yield f"{kind} on 2x2, hybrid", Case(kind, "2x2", {"pins": HYBRID}, declared=5)
    yield "language on 2x2, searched", Case("language", "2x2", declared=5)
    shares = {"algorithm": "eliminate", "ratios": "0.4,0.3,0.2,0.1"}
    yield "classifier on 4, uneven", Case("classifier", "4", shares, counts=MANY)
    yield "language on 4, in stages", Case("language", "4", {"stages": 2}, declared=6)


CASES = dict(cases())


def rows_and_refusals() -> dict[str, str]:
    """Return the error of epochs with a partial batch from `step.loader`, and the messages of refused evaluations."""
    rank = dist.get_rank()
    return {
        "rows": _partial_epochs(),
        "other batch": _refused(lambda step: step.evaluate((torch.full((4, 6), float(rank)), torch.arange(4) % 3))),
        "other shape": _refused(lambda step: step.evaluate((torch.ones(4 + rank, 6), torch.zeros(4 + rank).long())), 0),
        "no program": _refused(lambda step: step.evaluate((torch.ones(4, 3), torch.zeros(4).long()))),
    }


def _small(**options: Any) -> tuple[DistributedStep, OneDevice, TensorDataset]:
    """Return a step of 8 rows, the same step on one device, and 21 samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(21, 6), torch.randint(3, (21,)))
    loss = nn.functional.cross_entropy
    here = OneDevice(Kind(Classifier, loss, lambda output, labels: {}, classified, SGD), copy.deepcopy(model))
    cluster = split_cluster(parse_mesh(str(dist.get_world_size())))
    return sw.parallelize(model, loss, SGD, data[:8], cluster, **with_plan(options)), here, data


def _partial_epochs() -> str:
    step, here, data = _small(shapes=[(torch.zeros(5, 6), torch.zeros(5).long())], pins="zero3")
    loader = step.loader(data, drop_last=False)
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        whole = ShareSampler(21, 8, range(8), last=range(5))
        whole.set_epoch(epoch)
        order = list(whole)
        loaded = list(loader)
        if [len(rows) for rows in order] != [8, 8, 5] or len(loader) != len(loaded):
            return f"batches of {[len(rows) for rows in order]} rows, {len(loader)} or {len(loaded)}"
        for rows, batch in zip(order, loaded, strict=True):
            mine = step.evaluate(batch).loss if len(rows) == 8 else None
            expected = here.evaluate(data[rows])[0]
            loss = step(batch)
            trained, _ = here.step(data[rows])
            pairs = [(loss, trained), *([(mine, expected)] if mine is not None else [])]
            for found, wanted in pairs:
                if not torch.allclose(found, wanted, rtol=1e-5):
                    return f"epoch {epoch}, {len(rows)} rows: {found}, expected {wanted}"
    return ""


def _refused(call: Callable[[DistributedStep], object], compared: int = 10) -> str:
    step, _, _ = _small(compared=compared)
    try:
        call(step)
    except PlanError as error:
        return str(error)
    return ""
