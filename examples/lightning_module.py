"""
A LightningModule that trains on several devices, or on one.

    torchrun --nproc-per-node 2 examples/lightning_module.py [--cluster FILE]
    python examples/lightning_module.py    # on one device, to compare

Lightning runs the loop, the loggers and the callbacks. `training_step` is one planned step, which includes the update,
so Lightning uses manual optimization. Every process has a Trainer of one device; the step spreads the work over them.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import TensorDataset

import shardwright as sw

BATCH, EPOCHS = 16, 3
ADAMW = partial(torch.optim.AdamW, lr=1e-2)


def dataset(rows: int, seed: int) -> TensorDataset:
    """Return points on two rings with the ring as label, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows,), generator=generator)
    angle = torch.rand(rows, generator=generator) * 6.2832
    radius = 1.0 + labels + 0.2 * torch.randn(rows, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


def network() -> nn.Module:
    """Return the network to train."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def metrics(output: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the fraction of correct predictions."""
    return {"accuracy": (output.argmax(-1) == labels).float().mean()}


class Rings(pl.LightningModule):
    """
    A module that trains a network by a planned step.

    Args:
        cluster: as in `shardwright.parallelize`.
    """

    def __init__(self, cluster: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.training_data, self.held_out = dataset(128, seed=1), dataset(64, seed=2)
        # The step holds the weights, so that Lightning has no module to move, wrap or save.
        self.step = sw.parallelize(
            network(), nn.functional.cross_entropy, ADAMW, self.training_data[:BATCH], cluster, metrics=metrics
        )

    def configure_optimizers(self) -> Any:
        """Return the optimizer inside the step, for schedulers and monitors of the rate."""
        assert self.step.optimizer is not None
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.step.optimizer, T_max=24)
        return [self.step.optimizer], [schedule]

    def train_dataloader(self) -> Any:
        """Return the loader of this process's rows of every batch."""
        return self.step.loader(self.training_data)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch unchanged, because the step moves its rows itself."""
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Run forward, backward and update."""
        loss = self.step(batch)
        schedule: Any = self.lr_schedulers()
        schedule.step()
        self.log_dict({"loss": loss, **self.step.metrics})

    def on_train_epoch_end(self) -> None:
        """Log the loss of the trained weights on held-out data."""
        inputs, labels = self.held_out.tensors
        with self.step.module() as trained, torch.no_grad():
            self.log("held_out", nn.functional.cross_entropy(trained(inputs), labels))


def main() -> None:
    """Train, and write the log to `metrics.csv`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--out", default=tempfile.mkdtemp())
    options = parser.parse_args()

    rings = Rings(options.cluster)
    trainer = pl.Trainer(
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=[torch.cuda.current_device()] if torch.cuda.is_available() else 1,
        max_epochs=EPOCHS,
        log_every_n_steps=1,
        logger=CSVLogger(options.out) if rings.step.rank == 0 else False,
        # A Lightning checkpoint would have no weights, because the step holds them (`step.state_dict()`).
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(rings)
    with rings.step.module() as trained:
        if rings.step.rank == 0:
            torch.save(trained.state_dict(), f"{options.out}/model.pt")


if __name__ == "__main__":
    main()
