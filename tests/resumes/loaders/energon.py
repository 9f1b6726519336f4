"""Megatron-Energon 7.4.1."""

import gc
import io
import tarfile
import tempfile
import time
from pathlib import Path

import torch
from files import written
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
from megatron.energon.tools.checkpoint import command_redist

KIND = "energon"
SETTINGS = [
    {"restores": "rank"},
    {"restores": "redist", "max_samples_per_sequence": 3},
    {"restores": "global", "shuffle_buffer_size": 5},
    {"restores": "rank", "max_samples_per_sequence": 2},
    {"restores": "redist", "shuffle_buffer_size": 4},
    {
        "restores": "rank",
        "parallel_shard_iters": 2,
        "max_samples_per_sequence": 4,
        "shuffle_buffer_size": 3,
    },
    {"restores": "global", "parallel_shard_iters": 1},
]
YAML = """sample_type:
  __module__: megatron.energon
  __class__: TextSample
field_map:
  text: txt
"""


def write(place, shards):
    (place / ".nv-meta").mkdir(parents=True)
    names = [f"{shard:03d}.tar" for shard in range(len(shards))]
    for name, numbers in zip(names, shards, strict=True):
        with tarfile.open(place / name, "w") as tar:
            for number in numbers:
                info = tarfile.TarInfo(f"{number:06d}.txt")
                text = str(number).encode()
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))
    BaseWebdatasetFactory.prepare_dataset(
        place, names, split_parts_patterns=[("train", ".*")], workers=1
    )
    (place / ".nv-meta" / "dataset.yaml").write_text(YAML)


class Texts:
    def __init__(self, run):
        law = run.law
        config = WorkerConfig(
            rank=run.rank,
            world_size=run.world_size,
            num_workers=run.workers,
            seed_offset=run.seed,
        )
        parallel = law.get("parallel_shard_iters")
        self.loader = get_savable_loader(
            get_train_dataset(
                EPath(written(run, write)),
                worker_config=config,
                batch_size=run.batch_size,
                shuffle_buffer_size=law.get("shuffle_buffer_size"),
                max_samples_per_sequence=law.get("max_samples_per_sequence"),
                repeat=False,
                **({"parallel_shard_iters": parallel} if parallel else {}),
            ),
            checkpoint_every_sec=0,
            checkpoint_every_min_n_samples=1,
            watchdog_timeout_seconds=None,
            gc_collect_every_n_steps=0,
        )

    def __iter__(self):
        for batch in self.loader:
            yield [int(text) for text in batch.text]


def make(run):
    return Texts(run)


def state(texts):
    time.sleep(3)  # steps of training: all workers begin, and read ahead until they wait
    return texts.loader.save_state_rank()


def resume(run, states):
    texts = Texts(run)
    if run.law["restores"] == "global":
        texts.loader.restore_state_global(states)
    elif run.law["restores"] == "rank":
        if run.world_size > len(states):  # the rank without a file fails, and so does the job
            raise FileNotFoundError(f"train_dataloader_dprank{len(states):03d}.pt")
        texts.loader.restore_state_rank(states[run.rank])
    else:
        with tempfile.TemporaryDirectory() as folder:
            files = [EPath(Path(folder) / f"{rank:03d}.pt") for rank in range(len(states))]
            for one, file in zip(states, files, strict=True):
                torch.save(one, str(file))
            Path(folder, "new").mkdir()
            command_redist.callback(files, EPath(Path(folder) / "new"), run.world_size)
            own = torch.load(Path(folder) / "new" / f"{run.rank:03d}.pt", weights_only=False)
        texts.loader.restore_state_rank(own)
    return texts


gc.collect()
gc.freeze()  # ranks and workers, which are forked, go through less
