"""The Trainer of transformers, which saves a checkpoint after a step."""

import math
import tempfile
from pathlib import Path

import torch
from accelerate import PartialState
from alone import Waiting, alone, workers
from transformers import Trainer, TrainerCallback, TrainingArguments

KIND = "transformers_trainer"
SETTINGS = [{}, {}, {"ignore_data_skip": True}]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batch = []

    def forward(self, numbers):
        self.batch = numbers
        return {"loss": self.weight * 1.0}


class OfData(Trainer):
    def _load_from_checkpoint(self, *args, **kwargs):
        """Nothing: a checkpoint has no weights here."""


class Stops(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.step(math.ceil(state.epoch) - 1, model.batch.tolist())


def make(run, checkpoint=None):
    alone()
    folder = tempfile.mkdtemp(dir=run.folder)
    args = TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=run.batch_size,
        num_train_epochs=run.epoch + 3,
        dataloader_num_workers=workers(run),
        dataloader_pin_memory=False,
        seed=run.seed,
        ignore_data_skip=run.law.get("ignore_data_skip", False),
        remove_unused_columns=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    assert args.device.type == "cpu"
    PartialState._shared_state.update(num_processes=run.world_size, process_index=run.rank)
    trainer = OfData(
        Model(),
        args,
        lambda rows: {"numbers": torch.tensor(rows)},
        list(range(sum(run.samples))),
    )

    def save():
        path = Path(folder) / "state.json"
        trainer.state.save_to_json(str(path))
        return path.read_text()

    if checkpoint:
        Path(folder, "trainer_state.json").write_text(checkpoint)
    loader = Waiting(
        lambda: trainer.train(resume_from_checkpoint=folder if checkpoint else None), save
    )
    trainer.add_callback(Stops(loader.step))
    return loader


def state(loader):
    return loader.save()


def resume(run, states):
    return make(run, states[0])
