"""A library's order in a run and in a training: the same samples in both, and what nodes fetch."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from simshuffle.errors import InputError, ScenarioError
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.epochs import EpochPlan, Fetches, plan_epochs, sample_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.train import train_run
from simshuffle.train.cell import one_thread
from simshuffle.train.emulation import Emulation
from simshuffle.train.partition import label_divergence
from simshuffle.train.recording import TrainingRecorder
from simshuffle.train.run import Run
from simshuffle.train.samples import Samples
from simshuffle.train.sources import ArraySource
from simshuffle.train.training import Training
from simshuffle.workload.exchange import LoaderShuffle, ShardsContext, loader_shuffle
from simshuffle.workload.exchange.loader_shuffle import stored_samples
from simshuffle.workload.orders.fetching import count_fetches, divide_into_pieces
from simshuffle.workload.orders.order import EpochOrder, Readers
from tests.small import seconds, small

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES, RANKS, BATCH = 640, 8, 10
ORDERS: dict[str, dict[str, Any]] = {
    "mosaicml": {"kind": "mosaicml_streaming", "shuffle_block_size": 100},
    "webdataset": {"kind": "webdataset", "buffer_size": 20},
    "hugging_face": {"kind": "hugging_face", "buffer_size": 20},
    "litdata": {"kind": "litdata_full"},
    "corgi2": {"kind": "corgi2", "block_size": 5, "buffer_blocks": 3},
    "sampler": {"kind": "distributed_sampler"},
}
KEPT = ("mosaicml", "webdataset", "litdata")
"""Of these, the ones whose nodes keep their shards for ever."""


def strategy(order: str, **values: Any) -> LoaderShuffle:
    return LoaderShuffle.model_validate(
        {"kind": "loader_shuffle", "order": ORDERS[order], "samples_per_shard": 10, **values}
    )


def scenario(exchange: LoaderShuffle, **values: Any) -> Scenario:
    """4 nodes of 2 ranks with 2 workers each, and samples of 100 kB."""
    given = {
        "workload__exchange": exchange.model_dump(mode="json", exclude_none=True),
        "workload__dataset__num_samples": SAMPLES,
        "cluster__host__gpus": 2,
        "world_size": RANKS,
        "epochs": 3,
        "seed": 5,
    }
    return small(**{**given, **values})


def planned(of: Scenario) -> list[EpochPlan]:
    return list(plan_epochs(of, sample_nbytes(of)))


def fetches(plan: EpochPlan) -> Fetches:
    assert plan.training.fetches is not None
    return plan.training.fetches


def emulated(exchange: LoaderShuffle, workers: int = 2) -> Emulation:
    """A training without a machine: what it has of one, the keys of the strategy say."""
    rng = np.random.default_rng(0)
    drawn = Samples(rng.normal(size=(SAMPLES, 1, 2, 2)).astype(np.float32), np.arange(SAMPLES) % 4)
    source = ArraySource(drawn, np.zeros(1), np.ones(1), dtype=torch.float32, device="cpu")
    return Emulation(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 4)),
        source,
        strategy=exchange.model_copy(update={"ranks_per_node": 2, "workers": workers}),
        world_size=RANKS,
        training=Training(local_batch_size=BATCH, learning_rate=0.01),
        seed=5,
    )


# --------------------------------------------------------------------------- one order, two readers


@pytest.mark.parametrize("order", ORDERS)
def test_simulator_and_emulator_follow_the_same_order(order):
    simulated = [plan.shards for plan in planned(scenario(strategy(order), epochs=2))]
    emulation = emulated(strategy(order))
    for here in simulated:
        there = emulation.epoch().shards
        for name in ("order", "start", "worker"):
            assert np.array_equal(getattr(here, name), getattr(there, name)), name


@pytest.mark.parametrize("order", ORDERS)
def test_it_is_the_order_of_the_library_through_the_storage(order):
    """Every rank's samples, batch by batch of its workers in turn, at the places that the library
    names; the storage begins with the samples of rank 0 of the partition."""
    of = scenario(strategy(order))
    exchange = of.workload.exchange
    owner = exchange.first_owner(SAMPLES, RANKS, of.rng("partition"))
    shards = planned(of)[1].shards
    assert isinstance(exchange, LoaderShuffle)
    assert shards.sizes.tolist() == [SAMPLES // RANKS] * RANKS
    readers = readers_of(of)
    found = exchange.order.epoch(exchange.sharded_set(SAMPLES), readers, 5, 1)
    place = np.empty(SAMPLES, np.int64)
    turns = {
        rank: sorted(
            (position // BATCH, worker, position, sample)
            for r, worker, position, sample in zip(
                found.rank, found.worker, found.position, found.sample, strict=True
            )
            if r == rank
        )
        for rank in range(RANKS)
    }
    seen = np.zeros(SAMPLES, bool)
    for rank, rows in turns.items():
        mine = shards.order[shards.start[rank] : shards.start[rank + 1]]
        for (*_, number), sample in zip(rows, mine, strict=False):
            assert not seen[number] or place[number] == sample
            place[number], seen[number] = sample, True
    # in the order of places come the ranks of the partition
    assert (np.diff(owner[place[seen]]) >= 0).all()


def readers_of(of: Scenario) -> Readers:
    return Readers(of.hosts, 2, of.workload.loader.workers, BATCH)


def test_uneven_orders_are_cut_and_filled_up():
    """13 shards of 50 for 8 ranks: the first 5 have a second one, of which what is beyond N/M is
    not read; the others begin theirs anew."""
    exchange = strategy("webdataset", samples_per_shard=50, workers=1)
    shards = planned(scenario(exchange, workload__loader__workers=1))[0].shards
    assert shards.sizes.tolist() == [80] * RANKS
    own = [shards.order[shards.start[rank] : shards.start[rank + 1]] for rank in range(RANKS)]
    assert [len(np.unique(part)) for part in own] == [80] * 5 + [50] * 3
    for part in own[5:]:
        assert np.array_equal(part[50:], part[:30])


def test_labels_are_counted_as_they_are_trained_on():
    """Two ranks of 3 with labels 0 0 1 and 1 1 1, sample 5 being read twice and sample 2 never: a
    third and all of them are 1, of the set half."""
    targets, samples = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 3, 4, 5, 5])
    owner = np.array([0, 0, 0, 1, 1, 1])
    found = label_divergence(owner, targets, 2, samples)
    assert found == pytest.approx((abs(1 / 3 - 1 / 2) + 1 / 2) / 2)


def test_the_record_of_a_training_knows_repeated_samples():
    exchange = strategy("webdataset", samples_per_shard=50)
    emulation = emulated(exchange, workers=1)
    model, targets = emulation.network.model, emulation.source.targets
    recorder = TrainingRecorder(emulation, model, targets)
    outcome = emulation.epoch()
    recorder.add(outcome, emulation.last_losses, {})
    row = recorder.record().importance.iloc[0]
    trained = emulation.last_losses[np.unique(outcome.shards.order)]
    assert len(trained) < SAMPLES
    assert row["mean"] == pytest.approx(trained.mean())


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("values", "path", "says"),
    [
        ({"samples_per_shard": None}, "samples_per_shard", "reads shards of samples"),
        ({"samples_per_shard": 1}, "samples_per_shard", "reads shards of samples"),
        ({"samples_per_shard": 100}, "workers", "No samples found in dataset"),
        ({"order": {"kind": "webdataset"}}, "order.buffer_size", "never fills"),
        ({"cache_limit": "900 kB"}, "cache_limit", "shard of 1 MB"),
        ({"cache_limit": "5 TB"}, "cache_limit", "1 TB"),
        ({"ranks_per_node": 4}, "ranks_per_node", "of the machine, 2"),
        ({"workers": 3}, "workers", "of the loader, 2"),
        ({"sample_size": "5 kB"}, "sample_size", "of the data set, 100 kB"),
    ],
)
def test_what_a_library_cannot_do_is_named(values, path, says):
    exchange = strategy("webdataset").model_dump(mode="json", exclude_none=True)
    with pytest.raises(ScenarioError) as found:
        scenario(strategy("webdataset"), workload__exchange={**exchange, **values})
    (problem,) = found.value.problems
    assert problem.path == f"workload.exchange.{path}"
    assert says in problem.rule
    assert problem.remedy


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"workload__last_batch": "carry"}, "workload.last_batch"),
        ({"world_size": 7}, "workload.exchange.ranks_per_node"),
    ],
)
def test_what_does_not_go_with_a_loader_is_named(values, path):
    with pytest.raises(ScenarioError) as found:
        scenario(strategy("mosaicml"), **values)
    assert [problem.path for problem in found.value.problems] == [path]


def test_a_training_names_it_too():
    with pytest.raises(InputError) as found:
        emulated(strategy("webdataset", samples_per_shard=100)).epoch()
    assert [problem.path for problem in found.value.problems] == ["workers"]


# ------------------------------------------------------------------------------- what nodes fetch


@pytest.mark.parametrize("cache", ["2 MB", "1 TB", "0 B"])
@pytest.mark.parametrize("order", ["mosaicml", "hugging_face", "corgi2", "sampler"])
def test_fetched_is_what_the_study_of_loaders_counts(order, cache):
    """Requests and bytes of every epoch, to the byte, on a shape whose batches are whole."""
    of = scenario(strategy(order, cache_limit=cache))
    exchange = of.workload.exchange
    assert isinstance(exchange, LoaderShuffle)
    data, readers = exchange.sharded_set(SAMPLES, 100_000.0), readers_of(of)
    orders = [exchange.order.epoch(data, readers, 5, epoch) for epoch in range(3)]
    kinds = divide_into_pieces(
        data, exchange.order.unit, exchange.order.block, exchange.order.places(data, 5)
    )
    limit = {"2 MB": 2_000_000, "1 TB": None, "0 B": 0}[cache]
    for plan, counted in zip(
        planned(of), count_fetches(orders, readers, kinds, limit), strict=True
    ):
        reads, got = plan.training, fetches(plan)
        assert int(got.requests.sum()) == counted.requests
        assert int(got.nbytes.sum()) == counted.nbytes
        assert got.held_nbytes == counted.held_nbytes
        assert int(reads.hit_samples.sum()) == counted.hits
        assert got.cached_in == ("memory" if cache == "0 B" else "ssd")


@pytest.mark.parametrize("order", ORDERS)
def test_kept_shards_are_fetched_once(order):
    """With room for all, a node fetches nothing twice; where it keeps its shards, all in epoch 1.
    LitData deals in its first epoch and permutes what each node then has."""
    plans = planned(scenario(strategy(order)))
    of_epochs = [int(fetches(plan).nbytes.sum()) for plan in plans]
    assert of_epochs[0] >= SAMPLES * 100_000
    assert (of_epochs[1:] == [0, 0]) == (order in KEPT)
    held = [fetches(plan).held_nbytes for plan in plans]
    assert all(before <= after for before, after in pairwise(held))


# ----------------------------------------------------------------------------------------- times

STEPS: dict[str, Any] = {
    "cluster__parallel_file_system": {
        "read_bandwidth": "1 GB/s",
        "open_rate": "1 G/s",
        "latency": "10 ms",
        "link_latency": "0 s",
    },
    "cluster__ssd__latency": "0 s",
    "cluster__ssd__iops": None,
    "workload__loader": {"workers": 1, "prefetch": 1},
    "workload__dataset__decode": "0 s",
}


def test_epochs_take_as_long_as_their_shards_take_to_be_fetched():
    """2 nodes of a rank: 80 shards of 1 MB each are opened in 10 ms one after the other, and both
    nodes share 1 GB/s. The first epoch takes at least that, and no later one fetches anything."""
    exchange = strategy("mosaicml")
    of = scenario(
        exchange, world_size=2, cluster__host__gpus=1, workload__dataset__num_samples=1600, **STEPS
    )
    timeline = simulate(of)
    first, second, _ = timeline.sources.to_dict("records")
    assert first["read_requests"] == 160
    assert first["nbytes_pfs"] == 160e6
    assert second["read_requests"] == second["nbytes_pfs"] == 0
    assert second["nbytes_ssd"] == 160e6
    assert first["nbytes_cached"] == second["nbytes_cached"] == 80e6
    # all but the first sample of each shard come from the SSD in the first epoch already
    assert first["nbytes_ssd"] == pytest.approx(160e6 - 160 * 100e3)
    waits = [sum(seconds(timeline, "io", epoch).values()) / 2 for epoch in (1, 2)]
    assert waits[0] > waits[1]


@pytest.mark.parametrize("cache", ["1 TB", "2 MB", "0 B"])
@pytest.mark.parametrize("order", ["mosaicml", "sampler"])
def test_bounds_count_what_is_fetched_and_hold(order, cache):
    """Of the first epoch and of the second; the first one has all requests and bytes."""
    given = {"cluster__parallel_file_system__read_bandwidth": "100 MB/s", "epochs": 2}
    of = scenario(strategy(order, cache_limit=cache), **given)
    timeline = simulate(of)
    sources, phases = timeline.sources, timeline.phases.groupby("epoch")["end_s"].max()
    for epoch, took in ((1, phases[1]), (2, phases[2] - phases[1])):
        found = bounds(of.with_values({"epochs": epoch}))
        row = sources.iloc[epoch - 1]
        assert found.resources["PFS bandwidth"] == pytest.approx(row["nbytes_pfs"] / 100e6)
        assert found.resources["file opens"] == pytest.approx(row["read_requests"] / 20e3)
        assert found.epoch <= took * (1 + 1e-9)
        if epoch == 1:
            assert found.bottleneck == "PFS bandwidth"
            assert found.epoch > 0.75 * took


INSTANT: dict[str, Any] = {
    "cluster__host__gpus": 1,
    "cluster__host__pcie_bandwidth": "1 PB/s",
    "cluster__topology__link_bandwidth": "1 PB/s",
    "cluster__memory__bandwidth": "1 PB/s",
    "cluster__ssd__latency": "0 s",
    "cluster__ssd__iops": None,
    "workload__allreduce__inter_host_latency": "0 s",
    "workload__allreduce__intra_host_latency": "0 s",
    "workload__dataset__decode": "0 s",
    "workload__dataset__num_samples": 1600,
    "workload__model__gradient_size": "1 B",
    "workload__model__accelerators": {
        "v100-sxm2-16gb": {"forward": "0.1 ns", "backward": "0.1 ns"}
    },
    "world_size": 2,
}
"""All that is not storage takes next to no time: 80 iterations of 10 samples less than 1 us."""


@pytest.mark.parametrize(
    ("bandwidth", "open_rate", "takes"),
    [
        ("100 MB/s", "1 G/s", 160e6 / 100e6),  # 80 shards of 1 MB for each of two nodes
        ("1 PB/s", "100 1/s", 160 / 100),  # an open for each shard
    ],
)
def test_an_epoch_takes_what_the_file_system_takes_for_its_shards(bandwidth, open_rate, takes):
    """The first one: while a byte is missing, some worker of a node asks for it, for all else is
    done at once. The second one reads the 80 MB of its node from the SSD, at 100 MB/s. Opens that
    are passed one by one before the bytes, and what follows the last byte, take 1e-6 of it."""
    pfs = {"read_bandwidth": bandwidth, "open_rate": open_rate, "latency": "0 s"}
    of = scenario(
        strategy("mosaicml"),
        cluster__parallel_file_system={**pfs, "link_latency": "0 s"},
        cluster__ssd__read_bandwidth="100 MB/s",
        epochs=2,
        **INSTANT,
    )
    in_memory = of.with_values({"workload.exchange.cache_in": "memory"})
    ends = simulate(in_memory).phases.groupby("epoch")["end_s"].max()
    assert ends[1] == pytest.approx(takes, rel=2e-6)
    assert ends[2] - ends[1] < 2e-6
    timeline = simulate(of)
    ends = timeline.phases.groupby("epoch")["end_s"].max()
    assert ends[2] - ends[1] == pytest.approx(80e6 / 100e6, rel=2e-6)
    assert timeline.sources["nbytes_pfs"].tolist() == [160e6, 0.0]


@pytest.mark.parametrize(
    ("store", "takes"),
    [
        ({"bandwidth": "100 MB/s"}, 160e6 / 100e6),
        ({"request_rate": "100 1/s"}, 160 / 100),
        ({"host_bandwidth": "50 MB/s"}, 80e6 / 50e6),
    ],
)
def test_an_epoch_takes_what_the_object_store_takes_for_its_shards(store, takes):
    """As from the file system: 80 shards of 1 MB for each of two nodes, a request for each shard.
    The second epoch asks nothing more."""
    endless = {"latency": "0 s", "connection_bandwidth": "1 PB/s", "request_rate": "1 G/s"}
    of = scenario(
        strategy("mosaicml", source="object_store", cache_in="memory"),
        cluster__object_store=endless | store,
        epochs=2,
        **INSTANT,
    )
    timeline = simulate(of)
    ends = timeline.phases.groupby("epoch")["end_s"].max()
    assert ends[1] == pytest.approx(takes, rel=2e-6)
    sources = timeline.sources
    assert sources["read_requests_object_store"].tolist() == [160, 0]
    assert sources["nbytes_object_store"].tolist() == [160e6, 0]
    assert sources["object_store_usd"].tolist() == [pytest.approx(160 * 4e-7), 0]
    assert bounds(of.with_values({"epochs": 1})).epoch == pytest.approx(takes, rel=1e-3)


# ----------------------------------------------------------------------------------------- accuracy


@pytest.mark.parametrize(("batch_norm", "lost"), [("per_rank", True), ("none", False)])
def test_shards_that_ranks_keep_cost_accuracy_by_their_batch_norm(batch_norm, lost):
    """A batch has one class of eight, so what batch norm takes away is what tells classes apart."""
    values = {
        "data": {
            "kind": "procedural",
            **{"num_samples": 512, "test_samples": 256, "classes": 8, "flat": True},
        },
        "model": {"kind": "mlp", "width": 32, "layers": 2},
        "training": {
            **{"epochs": 8, "local_batch_size": 8, "learning_rate": 0.2},
            "batch_norm": batch_norm,
        },
        "partition": {"kind": "sorted"},
        "world_size": 8,
        "seed": 0,
    }
    order = {"kind": "webdataset", "buffer_size": 4}
    kept = {"kind": "loader_shuffle", "order": order, "samples_per_shard": 16}
    with one_thread():
        epochs, reference = (
            train_run(Run.model_validate({**values, "exchange": exchange}), device="cpu").epochs
            for exchange in (kept, {"kind": "global_shuffle"})
        )
    assert set(epochs["label_divergence"]) == {0.5}
    assert len(set(reference["label_divergence"])) > 1
    difference = epochs["own_accuracy"].iloc[-1] - reference["own_accuracy"].iloc[-1]
    assert difference < -0.5 if lost else difference > -0.1


# ---------------------------------------------------------------------- readers, caches and shards

SHUFFLED = {"kind": "webdataset", "buffer_size": 4}


def context(num_samples: int = 12, world_size: int = 6, **more: Any) -> ShardsContext:
    values = {"epoch": 1, "rng": np.random.default_rng(0), "seed": 3, "batch_size": 2, **more}
    return ShardsContext(owner=np.arange(num_samples) % world_size, world_size=world_size, **values)


def loader(order: Any = SHUFFLED, **values: Any) -> LoaderShuffle:
    return LoaderShuffle.model_validate({"kind": "loader_shuffle", "order": order, **values})


@pytest.mark.parametrize(
    ("world_size", "nodes", "ranks"), [(6, 2, 3), (8, 2, 4), (10, 5, 2), (7, 7, 1)]
)
def test_nodes_have_as_many_ranks_up_to_four_as_divide_all(world_size, nodes, ranks):
    assert loader().readers(context(world_size=world_size)) == Readers(nodes, ranks, 4, 2)


def test_readers_are_those_of_the_record_or_of_the_machine():
    of = loader(ranks_per_node=3, workers=5)
    assert of.readers(context()) == Readers(2, 3, 5, 2)
    assert of.readers(context(ranks_per_host=3, workers=5)) == Readers(2, 3, 5, 2)
    assert loader().readers(context(ranks_per_host=6, workers=1)) == Readers(1, 6, 1, 2)
    with pytest.raises(InputError, match="must divide the 6 ranks: a library's nodes have equally"):
        loader(ranks_per_node=4).readers(context())


@pytest.mark.parametrize(("num_samples", "samples"), [(10, [4, 4, 2]), (8, [4, 4]), (3, [3])])
def test_the_last_shard_has_what_is_left(num_samples, samples):
    of = loader(samples_per_shard=4, sample_size="50 B")
    data = of.sharded_set(num_samples)
    assert data.samples.tolist() == samples
    assert data.nbytes.tolist() == [50.0 * count for count in samples]
    assert loader(samples_per_shard=4).sharded_set(num_samples, 7.0).nbytes[0] == 7.0 * samples[0]
    assert loader(samples_per_shard=4).sharded_set(num_samples).nbytes.sum() == 0


BLOCKS = {"kind": "corgipile", "block_size": 6, "buffer_blocks": 1}


@pytest.mark.parametrize(
    ("order", "samples_per_shard", "least", "unit"),
    [
        (SHUFFLED, 4, 4, "shard"),
        (BLOCKS, 20, 6, "block"),
        (BLOCKS, 4, 4, "block"),  # blocks end with their shard
        ({"kind": "distributed_sampler"}, None, 1, "sample"),
    ],
)
def test_a_cache_holds_a_piece_and_fits_its_device(order, samples_per_shard, least, unit):
    """Samples of 100 bytes; the device has just room for the least cache."""

    def rules(limit: Any) -> list[str]:
        of = loader(order, samples_per_shard=samples_per_shard, cache_limit=limit)
        found = of.cache_problems(100.0, 100.0 * least)
        assert {problem.path for problem in found} <= {"cache_limit"}
        return [problem.rule for problem in found]

    assert rules(f"{100 * least} B") == rules("0 B") == rules(None) == []
    (below,), (above,) = (rules(f"{100 * least + more} B") for more in (-1, 1))
    assert below.startswith(f"must hold a {unit} of ")
    assert above.startswith("must not exceed the ")


def test_a_cache_with_room_for_the_set_drops_nothing():
    of = loader()
    assert [of.cache_nbytes(100.0, nbytes) for nbytes in (99.0, 100.0, 101.0)] == [None, None, 100]
    limited = loader(cache_limit="40 B")
    assert [limited.cache_nbytes(100.0, nbytes) for nbytes in (40.0, 41.0)] == [None, 40]
    without = loader(cache_limit="0 B")
    assert without.cache_nbytes(100.0, 40.0) == 0
    assert (without.cache_device, limited.cache_device, of.cache_device) == ("memory", "ssd", "ssd")
    assert loader(cache_in="memory").cache_device == "memory"


def test_shards_are_fetched_as_they_lie_in_storage():
    """6 samples in shards of 4: the first 4 in the order of storage make one. Bytes are summed, and
    then rounded to whole ones."""
    of = loader(samples_per_shard=4)
    owner, nbytes = np.array([1, 0, 1, 0, 1, 0]), np.array([1.4, 10.4, 100.4, 1000.4, 5.0, 7.0])
    stored = stored_samples(owner, 2, 3)
    assert sorted(stored[:3].tolist()) == [1, 3, 5]  # first those of rank 0
    pieces = of.fetched_pieces(owner, 2, 3, nbytes)
    assert pieces.piece_of_sample[stored].tolist() == [0, 0, 0, 0, 1, 1]
    assert pieces.nbytes.tolist() == [
        round(nbytes[stored[:4]].sum()),
        round(nbytes[stored[4:]].sum()),
    ]


def test_orders_of_many_samples_are_not_drawn_to_be_checked(monkeypatch):
    """webdataset has nothing for the workers of a single shard."""
    monkeypatch.setattr(loader_shuffle, "MAX_CHECKED_SAMPLES", 24)
    of = loader(samples_per_shard=100)
    with pytest.raises(InputError, match="No samples found in dataset"):
        of.check(context(24))
    of.check(context(25))
    for samples_per_shard, value in ((None, "none"), (1, "1")):
        with pytest.raises(InputError, match=f"must be at least 2: .*; got {value}"):
            loader(samples_per_shard=samples_per_shard).check(context(25))


def test_ranks_train_in_turns_of_their_workers():
    """Batches of one sample. Rank 0 has rows 0 to 2 of a worker and 3 of another, whose turns are
    iterations 0, 2, 4 and 1; rank 1 has row 4 alone. Of 5 samples each trains on 3."""
    rank, worker = np.array([0, 0, 0, 0, 1]), np.array([0, 0, 0, 1, 0])
    order = EpochOrder(rank, worker, np.array([0, 1, 2, 0, 0]), np.arange(5))
    rows = loader_shuffle._rows_trained_on(order, Readers(1, 2, 2, 1), 5)
    assert rows.tolist() == [0, 3, 1, 4, 4, 4]
    with pytest.raises(InputError, match=r"must leave each rank a sample: .*; got none for rank 2"):
        loader_shuffle._rows_trained_on(order, Readers(1, 3, 2, 1), 5)


def test_the_first_epoch_is_checked_whose_seed_is_that_of_the_run():
    """2^64 - 1 is the last seed of PyTorch; with it the second epoch has none."""
    of = loader("distributed_sampler")
    of.check(context(seed=2**64 - 1))
    with pytest.raises(InputError, match="seed and epoch are not negative"):
        of.epoch_shards(context(seed=2**64 - 1, epoch=2))
