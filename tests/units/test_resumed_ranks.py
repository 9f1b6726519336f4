"""A training of real ranks that is killed in the middle of an epoch, twice, and goes on with other
ranks and workers: each sample once, as the law says."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from simshuffle.errors import InputError
from simshuffle.train.distributed import Scheduler, ShardDataset
from simshuffle.train.training import load_optimizers
from simshuffle.workload.exchange.epochs import Epochs
from tests.preloaded import fork_ranks, run_ranks

SECONDS = 240
COUNT, BATCH, SEED = 65, 3, 5
WAYS = ["local_shuffle", "global_shuffle", "partial_local_shuffle:exchange_fraction=0.5"]
LAGGING = "importance_exchange:exchange_fraction=0.5,lagging=true"
STAGES = [(3, 0), (2, 2), (4, 1)]
"""Ranks and workers, one after the other."""
KILLED_AFTER = 2
"""Iterations of a stage in epoch 2, but for the last stage."""


def train(scheduler, epoch, loader=None, steps=None) -> list[list[int]]:
    """The batches of an epoch, or so many of them."""
    read = []
    for (batch,) in scheduler.epoch(epoch, loader):
        read.append(batch.tolist())
        scheduler.record_losses(1.0 + batch)
        if len(read) == steps:
            break
    return read


def work(folder: Path, number: int, ranks: int, workers: int, rank: int) -> None:
    """All that a rank does in a stage; it is killed if another one follows."""
    meeting = f"file://{folder}/meeting{number}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    last, found = number == len(STAGES) - 1, {}
    for way in [*WAYS, LAGGING]:
        shard = ShardDataset(TensorDataset(torch.arange(COUNT)), seed=SEED)
        scheduler = Scheduler(shard, BATCH, strategy=way)
        loader = DataLoader(shard, BATCH, sampler=scheduler.sampler, num_workers=workers)
        kept, before = (folder / f"{way.partition(':')[0]}-{n}" for n in (number, number - 1))
        if number == 0:
            train(scheduler, 1)
        else:
            scheduler.load_state_dict(torch.load(before, weights_only=True))
        found[way] = train(scheduler, 2, loader, None if last else KILLED_AFTER)
        if last:
            scheduler.verify()
            found[f"{way} later"] = train(scheduler, 3)
            scheduler.verify()
        else:
            torch.save(scheduler.state_dict(), f"{kept}.{rank}")
            Path(f"{kept}.{rank}").replace(kept)  # whoever is last: all ranks save the same
    (folder / f"{number}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    if not last:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By stage and rank, what was read by each way."""
    folder = run_ranks(__file__, tmp_path_factory, SECONDS)
    return [
        [json.loads((folder / f"{number}-{rank}.json").read_text()) for rank in range(ranks)]
        for number, (ranks, _) in enumerate(STAGES)
    ]


@pytest.mark.parametrize("way", [*WAYS, LAGGING])
def test_each_sample_is_read_once_though_ranks_are_killed_twice(found, way):
    read = [sample for ranks in found for rank in ranks for batch in rank[way] for sample in batch]
    assert sorted(read) == list(range(COUNT))
    later = {sample for rank in found[-1] for batch in rank[f"{way} later"] for sample in batch}
    assert later == set(range(COUNT))


@pytest.mark.parametrize("way", WAYS)
def test_ranks_read_what_the_law_says(alone, found, way):
    strategy = Scheduler(ShardDataset(TensorDataset(torch.arange(COUNT))), 3, strategy=way).strategy
    run = None
    for (ranks, _), read in zip(STAGES, found, strict=True):
        now = Epochs(strategy, COUNT, ranks, BATCH, SEED)
        if run is None:
            now.owner = strategy.first_owner(COUNT, ranks, now.rng("partition"))
            now.finish_epoch(now.next_plan(now.next_shards(), None))
        else:
            now.resume(run.state(KILLED_AFTER))
        assert [rank[way] for rank in read] == _batches(now, len(read[0][way]))
        run = now
    run.finish_epoch(run.next_plan(run.next_shards(), None))
    later = [rank[f"{way} later"] for rank in found[-1]]
    assert later == _batches(run, len(later[0]))


def _batches(run: Epochs, iterations: int) -> list[list[list[int]]]:
    rows = run.training_rows(run.next_shards())
    parts = np.split(rows, range(BATCH, len(rows), BATCH))[:iterations]
    return [[part[part[:, r] >= 0, r].tolist() for part in parts] for r in range(run.world_size)]


# -------------------------------------------------------------------------------------- one process


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A process group of this process alone."""
    meeting = f"file://{tmp_path_factory.mktemp('alone')}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def scheduler(strategy: str = WAYS[2], **more) -> Scheduler:
    return Scheduler(ShardDataset(TensorDataset(torch.arange(20))), 4, strategy=strategy, **more)


def by_hand(of: Scheduler, steps: int) -> list[list[int]]:
    """The first iterations of what a loader gives, by the authors' calls."""
    read = []
    loader = DataLoader(of.dataset, 4, sampler=of.sampler)
    for (batch,), _ in zip(loader, range(steps), strict=False):
        of.synchronize(*of.communicate())
        read.append(batch.tolist())
    return read


def test_a_sampler_goes_on_by_its_own_state(alone):
    """As ``StatefulDataLoader`` of torchdata 0.11.0 does: `_BatchSamplerIterator.load_state_dict`
    (stateful_dataloader/sampler.py) loads the sampler's state and then iterates it."""
    first, second = scheduler(), scheduler()
    first.scheduling(1)
    whole = list(first.sampler)
    numbers = iter(first.sampler)
    assert [next(numbers) for _ in range(8)] == whole[:8]
    state = first.sampler.state_dict()
    second.scheduling(1)
    second.sampler.load_state_dict(state)
    assert (len(second.sampler), list(second.sampler)) == (12, whole[8:])
    # and its scheduler knows how far it is; its state and the sampler's are the same place
    second.communicate()
    saved = second.state_dict()
    assert saved["steps"] == 3
    third = scheduler()
    third.load_state_dict(saved)
    third.scheduling(1)
    assert list(third.sampler) == whole[12:]
    third.sampler.load_state_dict(state)
    assert list(third.sampler) == whole[8:]
    with pytest.raises(InputError, match="that of this rank's current epoch; got other"):
        third.sampler.load_state_dict(state | {"order": "other"})


@pytest.mark.parametrize("way", WAYS)
def test_a_training_by_calls_goes_on(alone, way):
    first, second = scheduler(way), scheduler(way)
    first.scheduling(1)
    read = by_hand(first, 2)
    state = first.state_dict()
    second.load_state_dict(state)
    again = second.state_dict()
    assert state.keys() == again.keys()
    assert (again["steps"], again["owner"].tolist()) == (2, state["owner"].tolist())
    second.scheduling(1)
    read += by_hand(second, 9)
    second.clean_local_storage()
    whole = scheduler(way)
    assert read == [batch.tolist() for (batch,) in whole.epoch(1)]
    assert second.epochs_done == 1
    assert (second.owner == whole.owner).all()


def test_steps_that_nobody_counted_are_asked_for(alone):
    of = scheduler("local_shuffle")
    of.scheduling(1)
    next(iter(DataLoader(of.dataset, 4, sampler=of.sampler)))
    with pytest.raises(InputError, match="steps: are not known: the script neither"):
        of.state_dict()
    assert of.state_dict(steps=1)["steps"] == 1


def test_a_state_from_before_there_were_versions(alone):
    of = scheduler()
    list(of.epoch(1))
    old = {name: of.state_dict()[name] for name in ("epochs_done", "owner", "losses")}
    of.load_state_dict(old)
    assert (of.epochs_done, of.steps_done, of.remaining) == (1, 0, None)


def test_what_is_drawn_by_weights_has_no_rest_for_others(alone):
    of = scheduler(weights=np.ones(20))
    of.scheduling(1)
    state = of.state_dict(steps=1) | {"world_size": 2}
    with pytest.raises(InputError, match="world_size: must be 1 with batches of 4"):
        of.load_state_dict(state)


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_optimizers()  # once for all stages
    for number, (ranks, workers) in enumerate(STAGES):
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if not child:
            of = Path(sys.argv[1]), number, ranks, workers
            fork_ranks(ranks, lambda rank, of=of: work(*of, rank))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == int(number < len(STAGES) - 1), (number, status)
