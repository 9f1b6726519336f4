"""Lightning's Trainer, which saves a checkpoint after a step."""

import tempfile
from pathlib import Path

import torch
from alone import Waiting, alone, workers
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

KIND = "lightning"
SETTINGS = [
    {},
    {"in_process": True},
    {"stateful": True, "in_process": True},
    {},
    {"in_process": True},
    {"stateful": True},
]


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        return self.weight * 1.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Stops(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.step(trainer.current_epoch, batch.tolist())


def make(run, checkpoint=None):
    alone()
    law, data = run.law, range(sum(run.samples))
    count = run.workers if law.get("stateful") else workers(run, 1)
    loader = (StatefulDataLoader if law.get("stateful") else DataLoader)(
        data,
        run.batch_size,
        sampler=DistributedSampler(data, run.world_size, run.rank, seed=run.seed),
        num_workers=0 if law.get("in_process") else count,
    )
    path = Path(tempfile.mkdtemp(dir=run.folder), "last.ckpt")
    if checkpoint:
        path.write_bytes(checkpoint)

    def fit():
        trainer.fit(Model(), loader, ckpt_path=str(path) if checkpoint else None)

    def save():
        trainer.save_checkpoint(path)
        return path.read_bytes()

    waiting = Waiting(fit, save)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=run.epoch + 2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Stops(waiting.step)],
    )
    return waiting


def state(loader):
    return loader.save()


def resume(run, states):
    return make(run, states[0])  # rank 0 saves for all
