"""The example of Hugging Face's Trainer: two processes log and save the same as the plain Trainer on one device."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from example_runs import EXAMPLES, launch_example, load_example, write_cluster
from forked import run_python

import shardwright as sw

# Importing them takes seconds in every worker that collects this file.
pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("transformers", "accelerate")), reason="needs transformers and accelerate"
)

COMPARED = ("loss", "eval_loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "train_loss")


def compared(log: list[dict[str, float]], *names: str) -> list[dict[str, float]]:
    """Return the entries of a log that must be equal."""
    return [{name: each[name] for name in names if name in each} for each in log]


def logged(printed: str) -> list[dict[str, float]]:
    """Return the compared entries of the log that the script printed."""
    return compared(json.loads(printed.splitlines()[-1]), *COMPARED)


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_trainer_logs_and_saves_the_same_as_on_one_device(tmp_path: Path):
    from safetensors.torch import load_file

    folders = {name: tmp_path / name for name in ("alone", "spread")}
    alone = run_python(str(EXAMPLES / "hf_trainer.py"), "--out", str(folders["alone"])).stdout
    cluster = write_cluster(2, tmp_path)
    spread = launch_example("hf_trainer", "--cluster", cluster, "--out", str(folders["spread"]), ranks=2)

    ours, theirs = logged(spread), logged(alone)
    assert [each.keys() for each in ours] == [each.keys() for each in theirs]
    assert sum("eval_loss" in each for each in ours) == 2
    for found, expected in zip(ours, theirs, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    saved = {name: load_file(folder / "model.safetensors") for name, folder in folders.items()}
    assert saved["spread"].keys() == saved["alone"].keys()
    for name, value in saved["alone"].items():
        torch.testing.assert_close(saved["spread"][name], value, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, dict[str, Any]] = {
    "gradient_accumulation_steps.*micro_batches": {"gradient_accumulation_steps": 2},
    "save_only_model=False": {"save_strategy": "steps"},
    "label_smoothing_factor": {"label_smoothing_factor": 0.1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_argument_that_a_planned_step_would_ignore_is_refused(message: str, tmp_path: Path):
    from transformers import GPT2LMHeadModel, TrainingArguments

    from shardwright.models.hf.trainer import DistributedTrainer

    asked = {"save_strategy": "no", **REFUSED[message]}
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **asked)
    model = GPT2LMHeadModel(load_example("hf_trainer").CONFIG)
    with pytest.raises(ValueError, match=message):
        DistributedTrainer(model, arguments)


def test_a_last_batch_of_another_size_and_a_second_training_are_refused(tmp_path: Path):
    from transformers import GPT2LMHeadModel, TrainingArguments

    from shardwright.models.hf.trainer import DistributedTrainer

    example = load_example("hf_trainer")
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, max_steps=1, use_cpu=True, report_to=[], save_strategy="no"
    )
    torch.manual_seed(0)
    asked = {"cluster": "local-4"}
    odd = DistributedTrainer(
        GPT2LMHeadModel(example.CONFIG), arguments, train_dataset=example.Windows("ast.py", 6), parallelize=asked
    )
    with pytest.raises(ValueError, match=r"has 6 samples, not a multiple of the 4 rows .*dataloader_drop_last"):
        odd.train()
    even = DistributedTrainer(
        GPT2LMHeadModel(example.CONFIG), arguments, train_dataset=example.Windows("ast.py", 8), parallelize=asked
    )
    even.train()
    with pytest.raises(ValueError, match="has already trained; create another"):
        even.train()
    with pytest.raises(ValueError, match="resume_from_checkpoint"):
        even.train(resume_from_checkpoint=True)


def test_accumulation_in_the_step_equals_the_plain_trainer(tmp_path: Path):
    """A batch of four times the rows with `micro_batches=4` replaces `gradient_accumulation_steps=4`."""
    from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

    from shardwright.models.hf.trainer import DistributedTrainer

    example = load_example("hf_trainer")
    logs: list[list[dict[str, float]]] = []
    for kind, rows, parts in ((Trainer, 2, 4), (DistributedTrainer, 8, 1)):
        torch.manual_seed(0)
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=parts,
            max_steps=3,
            learning_rate=3e-3,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
        )
        asked = {"cluster": "local-4", "plan": sw.PlanOptions(micro_batches=4, stages=1)}
        options: dict[str, Any] = {"parallelize": asked} if kind is DistributedTrainer else {}
        data = example.Windows("argparse.py", 32)
        trainer = kind(GPT2LMHeadModel(example.CONFIG), arguments, train_dataset=data, **options)
        trainer.train()
        logs.append(compared(trainer.state.log_history, "loss", "grad_norm"))
    assert logs[1] == [pytest.approx(each, rel=1e-5) for each in logs[0]]
