"""
HiDup's figure 10: the training loss of BERT-SGMoE by time (`hidup.py --only loss [--steps N] [--text FILE]`).

The paper trains on eight GPUs until convergence. Here a small BERT-SGMoE (4 layers of 64, 4 experts) learns to fill in
masked words of a text in float64, on one device by PyTorch and on two processes by the two compared programs: GShard's
strategy with an unsplit batch (DeepSpeed's) and in duplex by phases (HiDup's). The losses are measured. Times are
simulated: a step takes the seconds of the paper's model on the paper's cluster in that way (`bandwidth`, 100 Gbit/s).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from _report import ROOT, Rows, plot_curves
from _sides import executor_of
from hidup_figures import by_way
from hidup_plans import HALVES, Setting

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.models.bert import IGNORED, Bert, BertConfig
from shardwright.models.moe import balanced, sparsely_gated
from shardwright.models.transformer import token_cross_entropy
from shardwright.passes.pipeline import Pipeline
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.runtime import run_ranks

LENGTH, BATCH, WORDS = 32, 32, 1000
MASKED = 0
"""Token of a masked word. Token 1 is any word that is not among the most common."""

EXPERTS_APART = """
[[pin]]
value = "layers.*.mlp.experts.*"
sharding = '[{"gpu"}, {}, {}]'
"""
WAYS = {
    "DeepSpeed's way": "program",
    "HiDup's way": f"{HALVES},duplex{{order=phases}},overlap,join-updates",
}


def batches_of(text: str, steps: int) -> list[dict[str, torch.Tensor]]:
    """Return `steps` batches of random windows of a text, with 15 % of their words masked."""
    words = text.split()
    token_of = {word: 2 + place for place, (word, _) in enumerate(Counter(words).most_common(WORDS))}
    tokens = torch.tensor([token_of.get(word, 1) for word in words])
    generator = torch.Generator().manual_seed(0)
    batches: list[dict[str, torch.Tensor]] = []
    for _ in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (BATCH, 1), generator=generator)
        rows = tokens[starts + torch.arange(LENGTH)]
        chosen = torch.rand(BATCH, LENGTH, generator=generator) < 0.15
        chosen[:, 0] = True
        segments, mask = torch.zeros(BATCH, LENGTH, dtype=torch.long), torch.ones(BATCH, LENGTH, dtype=torch.bool)
        batch = {"tokens": torch.where(chosen, MASKED, rows), "segments": segments, "mask": mask}
        batches.append(batch | {"labels": torch.where(chosen, rows, IGNORED)})
    return batches


def small_step(batch: Mapping[str, torch.Tensor]) -> TrainingStep:
    experts = sparsely_gated(4)
    config = BertConfig(4, width=64, heads=4, vocabulary=WORDS + 2, positions=LENGTH, experts=experts, tied=False)
    return TrainingStep(
        model=partial(Bert, config),
        loss=partial(balanced, loss=token_cross_entropy),
        optimizer=partial(torch.optim.AdamW, lr=2e-3, weight_decay=0.01),
        batch=dict(batch),
    )


def on_one_device(step: TrainingStep, batches: Sequence[Mapping[str, torch.Tensor]]) -> list[float]:
    """Train by PyTorch on one device, and return the losses."""
    torch.manual_seed(0)
    model = step.build_model().double()
    optimizer = step.optimizer(model.parameters())
    by_step: list[float] = []
    for batch in batches:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        assert step.loss is not None
        loss = step.loss(model(**inputs), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        by_step.append(loss.item())
    return by_step


def on_ranks(text: str, batches: Sequence[Mapping[str, torch.Tensor]]) -> list[float]:
    """Train by a program as one of its ranks, and return the losses."""
    torch.set_num_threads(1)
    executor = executor_of(small_step(batches[0]), text)
    return [executor.step(batch).item() for batch in batches]


def losses(steps: int, text: Path | None) -> Rows:
    """Return a row for each way: its last loss, the largest error against one device, and its seconds."""
    files = [text] if text is not None else sorted((ROOT / "docs").glob("*.md"))
    batches = batches_of("\n".join(file.read_text() for file in files), steps)
    step = small_step(batches[0])
    alone = on_one_device(step, batches)
    cluster = on_mesh(find_cluster("hidup-2x4-100g"), Mesh.of(gpu=2))
    seconds = by_way(Setting("bert-sgmoe", 8, "hidup-2x4-100g"))
    rows = Rows()
    for way, passes in WAYS.items():
        pipeline = Pipeline.of("prepare", SearchStrategyPass(pins=EXPERTS_APART), passes, "finish")
        compiled = compile_step(step, cluster, PlanOptions(dtype=torch.float64, pipeline=pipeline))
        own_losses, *_ = run_ranks(on_ranks, 2, compiled.program, batches, timeout=1200)
        a_step = 1e-3 * seconds[f"{way} ms"]
        error = max(abs(own - other) / other for own, other in zip(own_losses, alone, strict=True))
        row = {"way": way, "steps": steps, "first loss": own_losses[0]}
        row |= {"last loss": sum(own_losses[-10:]) / len(own_losses[-10:]), "from one device": error}
        rows.append(row | {"s of a step": a_step, "s to the last": steps * a_step, "losses": own_losses})
    return rows


def plot_losses(name: str, rows: Rows) -> None:
    """Plot losses by simulated seconds, as means over five steps."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        by_step, a_step = row["losses"], row["s of a step"]
        ends = range(5, len(by_step) + 1, 5)
        series[row["way"]] = [(end * a_step, sum(by_step[end - 5 : end]) / 5) for end in ends]
    xlabel = "simulated time of the paper's model, s"
    plot_curves(name, series, title="HiDup, figure 10: loss over time", xlabel=xlabel, ylabel="loss")
