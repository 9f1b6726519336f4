"""A study of a model, data, loss and optimiser of the caller's on real ranks: what emulated ranks
do with the same arguments, and what is refused."""

import json
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from simshuffle import read
from simshuffle.errors import InputError
from simshuffle.train import train_study
from simshuffle.train.distributed import train_study as train_on_ranks
from tests.preloaded import fork_ranks, run_ranks

SECONDS = 240
STRATEGIES = [
    "global_shuffle",
    "partial_local_shuffle:exchange_fraction=0.3",
    "importance_exchange:exchange_fraction=0.3",
    "importance_pair:exchange_fraction=0.3,lagging=true",
    # the second rank has five shards of the 13, and begins them anew
    "loader_shuffle:order=webdataset,order.buffer_size=10,samples_per_shard=8,workers=1",
]

pytestmark = pytest.mark.usefixtures("one_thread")


def tensors(count: int) -> TensorDataset:
    rng = np.random.default_rng(count)
    inputs = rng.normal(size=(count, 6)).astype(np.float32)
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy((inputs[:, 0] > 0).astype(int)))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def groups(parameters: Any) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.Adam([{"params": others}, {"params": [first], "lr": 0.02}], lr=0.01)


def arguments(**values: Any) -> dict[str, Any]:
    return {
        "strategies": STRATEGIES,
        "seeds": 2,
        "epochs": 3,
        "local_batch_size": 8,
        "warmup_epochs": 1,
        "dtype": "float64",
        "loss": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.2),
        "optimizer": groups,
        "device": "cpu",
        **values,
    }


# ------------------------------------------------------------------------------------ on every rank


def refused(action: Any, **values: Any) -> str:
    try:
        action(network, tensors(101), tensors(40), **arguments(**values))
    except InputError as error:
        return str(error)
    return ""


LOADER = {"strategies": ["loader_shuffle:order=webdataset"]}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (train_on_ranks, {"loss": F.cross_entropy}, "loss: must be one number for each sample"),
    (train_on_ranks, {"learning_rate": 0.1}, "learning_rate: is not used beside an optimizer"),
    (train_on_ranks, {"world_size": 3}, "world_size: must be the number of processes, 2; got 3"),
    (train_study, {"world_size": 2}, "emulates all ranks in one process; got 2 processes"),
    (train_on_ranks, {"kept_in": Path("kept")}, "version: is needed with kept_in"),
    (train_on_ranks, LOADER, "strategies.samples_per_shard: must be at least 2"),
]


def serve(rank: int) -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=SECONDS),
    )
    result = train_on_ranks(
        network,
        tensors(101),
        tensors(40),
        storage=folder / "storage",
        version="1",
        kept_in=folder / "kept",
        **arguments(),
    )
    assert (result is None) == (rank == 1)
    if result is not None:
        result.save(folder / "real")
    told = [refused(action, **values) for action, values, _ in REFUSED]
    (folder / f"told{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes did."""
    return run_ranks(__file__, tmp_path_factory, SECONDS)


def test_real_ranks_train_what_emulated_ones_do_with_the_same_arguments(folder):
    real = read(folder / "real")
    emulated = train_study(
        network, tensors(101), tensors(40), world_size=2, progress=False, **arguments()
    )
    names = ["strategy", "seed", "model", "data", "batch_norm", "learning_rate", "status"]
    runs = [result.tables["runs"].sort_values("run") for result in (real, emulated)]
    assert runs[0][names].to_numpy().tolist() == runs[1][names].to_numpy().tolist()
    assert len(runs[0]) == 10
    for name, other in zip(runs[0]["run"], runs[1]["run"], strict=True):
        found = real.tables["epochs"].loc[lambda table, name=name: table["run"] == name]
        wanted = emulated.tables["epochs"].loc[lambda table, name=other: table["run"] == name]
        for column in ("train_loss", "own_loss", "rank0_loss", "recalibrated_loss", "moved"):
            np.testing.assert_allclose(found[column], wanted[column], rtol=1e-9)
    assert not [path for path in (folder / "storage").rglob("*") if path.is_file()]


def test_the_loss_and_the_optimizer_are_those_that_are_given(folder):
    """Neither cross-entropy nor SGD gives these losses."""
    found = read(folder / "real").tables["epochs"]["train_loss"].tolist()
    for other in (
        {"loss": partial(F.cross_entropy, reduction="none")},
        {"optimizer": partial(torch.optim.SGD, lr=0.01)},
    ):
        changed = train_study(
            network, tensors(101), tensors(40), world_size=2, progress=False, **arguments(**other)
        )
        losses = changed.tables["epochs"]["train_loss"].tolist()
        assert not np.isclose(losses, found, rtol=1e-4).any()


@pytest.mark.parametrize("rank", [0, 1])
def test_what_cannot_be_trained_is_refused_on_every_rank(folder, rank):
    told = json.loads((folder / f"told{rank}.json").read_text())
    missing = [said for (*_, said), text in zip(REFUSED, told, strict=True) if said not in text]
    assert missing == []


def test_without_a_process_group_the_remedy_names_torchrun():
    assert "torchrun" in refused(train_on_ranks)


def test_processes_of_torchrun_do_not_each_train_the_whole_study(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "simshuffle.train.distributed.train_study" in refused(train_study, world_size=2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_ranks(2, serve)
