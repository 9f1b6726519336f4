"""Orders of PyTorch, MosaicML Streaming and LitData are those of the libraries, bit for bit."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from simshuffle.errors import InputError
from simshuffle.workload.orders import (
    AnyOrder,
    DistributedSampler,
    MosaicmlStreaming,
    Readers,
    ShardedSet,
    samplers,
)
from simshuffle.workload.orders.samplers import Accelerate, TorchFt
from tests.orders_of_libraries import LIBRARIES, RECORDED, answered
from tests.resumes.loaders.files import without_torchvision
from tests.shared import needs_peers

ORDERS = TypeAdapter(AnyOrder | Accelerate | TorchFt)
ANSWERS = {library: json.loads((RECORDED / f"{library}.json").read_text()) for library in LIBRARIES}


def sharded(samples):
    return ShardedSet(np.array(samples, np.int64), 1000.0 * np.array(samples))


def order_of(case):
    readers = Readers(case["nodes"], case["ranks"], case["workers"], case["batch_size"])
    order = ORDERS.validate_python(case["order"])
    return order.epoch(sharded(case["samples"]), readers, case["seed"], case["epoch"])


def handed_out(case):
    """Of each rank, of each worker: samples by position; or that it is refused."""
    try:
        order = order_of(case)
    except InputError:
        return "refused"
    who = order.rank * case["workers"] + order.worker
    assert np.all(np.diff(who) >= 0)
    parts = []
    for number in range(case["nodes"] * case["ranks"] * case["workers"]):
        own = who == number
        assert np.array_equal(order.position[own], np.arange(own.sum()))
        parts.append(order.sample[own].tolist())
    return [
        parts[begin : begin + case["workers"]] for begin in range(0, len(parts), case["workers"])
    ]


@pytest.mark.parametrize("library", LIBRARIES)
def test_orders_are_what_the_library_recorded(library):
    for case in ANSWERS[library]["cases"]:
        asked = {key: value for key, value in case.items() if key != "answer"}
        expected = "refused" if isinstance(case["answer"], str) else case["answer"]
        assert handed_out(asked) == expected, asked


@needs_peers
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_still_answers_what_was_recorded(library):
    module = LIBRARIES[library][0]
    if find_spec(module.split(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    if library == "mosaicml-streaming" and find_spec("torchvision") is None:
        without_torchvision()
    pytest.importorskip(module, exc_type=ImportError)
    again = ANSWERS[library]["cases"][::7]
    for case in again:
        asked = {key: value for key, value in case.items() if key != "answer"}
        if asked["order"].get("shuffle_algo") != "py1b":  # which newer versions do not have
            assert answered(library, asked) == case["answer"], asked


def test_recorded_answers_say_of_which_library_and_are_many():
    for library, recorded in ANSWERS.items():
        assert recorded["library"] == library
        assert recorded["version"]
        orders = [case for case in recorded["cases"] if not isinstance(case["answer"], str)]
        assert len(orders) > 45
        assert {case["epoch"] for case in orders} == {0, 1, 2, 3}
        assert {case["nodes"] for case in orders} == {1, 2, 3, 4}
        assert any(
            len(case["samples"]) < case["nodes"] * case["ranks"] for case in orders
        )  # more ranks than shards


class Numbers:
    """A data set that says who loads a sample."""

    def __len__(self):
        return 23

    def __getitem__(self, sample):
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return (info.id if info else 0), sample


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_get_the_batches_that_a_data_loader_gives_them(workers):
    from torch.utils.data import DataLoader
    from torch.utils.data import DistributedSampler as Library

    order = DistributedSampler(kind="distributed_sampler").epoch(
        sharded([23]), Readers(1, 2, max(workers, 1), 2), 5, 1
    )
    sampler = Library(Numbers(), 2, 1, seed=5)
    sampler.set_epoch(1)
    loader = DataLoader(
        Numbers(), sampler=sampler, batch_size=2, num_workers=workers, collate_fn=list
    )
    loaded = [pair for batch in loader for pair in batch]
    own = order.rank == 1
    for worker in range(max(workers, 1)):
        expected = [sample for by, sample in loaded if by == worker]
        assert order.sample[own & (order.worker == worker)].tolist() == expected


# --------------------------------------------------------------------------------------- properties

KINDS = [
    {"kind": "distributed_sampler"},
    *(
        {"kind": "mosaicml_streaming", "shuffle_algo": algorithm, "num_canonical_nodes": 2}
        for algorithm in ("naive", "py1s", "py2s", "py1b", "py1br", "py1e")
    ),
    {"kind": "litdata_full", "drop_last": False},
    {"kind": "litdata_window", "drop_last": False},
]


@pytest.mark.parametrize("order", KINDS, ids=lambda order: "-".join(map(str, order.values())))
@settings(max_examples=25)
@given(
    samples=st.lists(st.integers(0, 9), min_size=16, max_size=24),
    nodes=st.sampled_from([1, 2, 4]),
    ranks=st.integers(1, 2),
    workers=st.integers(1, 2),
    seed=st.integers(0, 2**20),
    epoch=st.integers(0, 3),
)
def test_every_sample_is_handed_out_and_none_more_often_than_needed(
    order, samples, nodes, ranks, workers, seed, epoch
):
    readers = Readers(nodes, ranks, workers, 1)
    size = sum(samples)
    assume(size >= 16)
    try:
        made = ORDERS.validate_python(order).epoch(sharded(samples), readers, seed, epoch)
    except InputError:
        if order["kind"] != "litdata_window":
            raise
        reject()  # a rank may have empty chunks alone
    times = np.bincount(made.sample, minlength=size)
    assert len(times) == size
    assert times.min() >= 1
    if order["kind"] == "litdata_full":  # a chunk that two nodes had parts of is read by both
        most = 9 * (nodes - 1) if epoch else 0
    elif order["kind"] == "litdata_window":
        most = 0
    else:  # to make shares even: of 2 canonical nodes, of the nodes, of the ranks
        most = 2 + 2 * nodes * ranks
    assert times.sum() - size <= most


def samples_of_nodes(order, epoch, readers, samples):
    made = ORDERS.validate_python(order).epoch(sharded(samples), readers, 3, epoch)
    return [set(made.sample[made.rank // readers.ranks == node].tolist()) for node in range(2)]


@pytest.mark.parametrize("order", KINDS[1:], ids=lambda order: "-".join(map(str, order.values())))
def test_which_shuffles_read_the_same_samples_on_a_node_in_all_epochs(order):
    samples = [7] * 21
    first, *later = (
        samples_of_nodes(order, epoch, Readers(2, 2, 2, 3), samples) for epoch in range(4)
    )
    fixed = order.get("shuffle_algo") != "naive"
    if order["kind"] == "litdata_full":  # the chunk that both had parts of is now read by both
        shared = [chunk for chunk in range(21) if all(first[n] & chunk_of(chunk) for n in (0, 1))]
        assert len(shared) == 1
        first = [own | chunk_of(shared[0]) for own in first]
    assert [epoch == first for epoch in later] == [fixed] * 3


def chunk_of(chunk):
    return set(range(7 * chunk, 7 * chunk + 7))


def test_py1e_gives_each_canonical_node_the_same_shards_in_all_epochs():
    """Of 4 canonical nodes on 2 nodes: sample k of a node is canonical node k mod 2's."""
    order = MosaicmlStreaming(kind="mosaicml_streaming", num_canonical_nodes=4)
    data = sharded([8] * 24)
    parts = []
    for epoch in range(4):
        made = order.epoch(data, Readers(2, 1, 1, 2), 3, epoch)
        of_nodes = [made.sample[made.rank == node] for node in (0, 1)]
        turns = [samples[turn::2] for samples in of_nodes for turn in (0, 1)]
        parts.append([frozenset(data.shard_of(samples).tolist()) for samples in turns])
    assert [len(shards) for shards in parts[0]] == [6] * 4
    assert len(frozenset().union(*parts[0])) == 24
    assert parts[1:] == parts[:1] * 3


def test_a_cache_that_is_too_small_sends_chunks_to_other_nodes():
    readers, samples = Readers(2, 2, 2, 3), [7] * 21
    order = {"kind": "litdata_full", "max_cache_size": "70 kB"}
    first, later = (samples_of_nodes(order, epoch, readers, samples) for epoch in (0, 1))
    assert len(first[0] & later[0]) < 0.8 * len(first[0])


def test_what_is_fetched_at_once_is_a_sample_for_pytorch_and_a_shard_for_the_others():
    units = [ORDERS.validate_python(order).unit for order in KINDS]
    assert units == ["sample"] + ["shard"] * (len(KINDS) - 1)


def test_defaults_are_those_of_the_library():
    readers = Readers(2, 8, 4, 16)
    py1e = MosaicmlStreaming(kind="mosaicml_streaming")
    py1s = MosaicmlStreaming(kind="mosaicml_streaming", shuffle_algo="py1s")
    assert (py1e.canonical_nodes(readers), py1e.block_size(readers)) == (2, 2_000_000)
    assert (py1s.canonical_nodes(readers), py1s.block_size(readers)) == (128, 2**18)


# ---------------------------------------------------------------------------------------- bad input

SMALL = Readers(2, 2, 1, 2)
MOSAICML = {"kind": "mosaicml_streaming"}
CUT = MOSAICML | {"shuffle_block_size": 1, "shuffle_algo": "py1br"}
STREAMS = {"kind": "mosaicml_streams", "sources": [1, 1], "weights": [1.0, 1.0]}
BAD = [
    ({}, [], SMALL, 0, "data.samples"),
    ({}, [0, 0], SMALL, 0, "data.samples"),
    ({}, [4, -1], SMALL, 0, "data.samples"),
    ({}, [2**28], SMALL, 0, "data.samples"),
    ({}, [40], Readers(2, 2, 0, 2), 0, "readers.workers"),
    ({}, [40], SMALL, -1, "seed"),
    ({}, [40], SMALL, 2**64, "seed"),
    ({"kind": "accelerate"}, [40], SMALL, 2**64, "seed"),
    ({"drop_last": True}, [3], SMALL, 0, "drop_last"),
    (MOSAICML | {"shuffle_block_size": 41}, [40], SMALL, 0, "shuffle_block_size"),
    (CUT, [40], SMALL, 0, "shuffle_block_size"),
    (MOSAICML | {"num_canonical_nodes": 3}, [40], SMALL, 0, "num_canonical_nodes"),
    (MOSAICML | {"num_canonical_nodes": 8}, [5], SMALL, 0, "num_canonical_nodes"),
    (MOSAICML | {"num_canonical_nodes": 1}, [2], Readers(4, 1, 1, 1), 0, "data.samples"),
    (MOSAICML | {"initial_nodes": 3}, [40], SMALL, 0, "initial_nodes"),
    ({"kind": "litdata_full"}, [7], SMALL, 0, "readers"),
    ({"kind": "litdata_window"}, [20] * 3, SMALL, 0, "readers"),
    ({"kind": "litdata_window"}, [40], SMALL, 2**32 - 1, "seed"),
    (MOSAICML, [40], SMALL, 2**64, "seed"),
    *(
        (STREAMS | {"batching_method": batching}, [20, 20], SMALL, 2**64, "seed")
        for batching in ("random", "stratified", "per_stream")
    ),
]


@pytest.mark.parametrize(("order", "samples", "readers", "seed", "path"), BAD)
def test_what_cannot_be_read_is_refused_with_a_remedy(order, samples, readers, seed, path):
    order = ORDERS.validate_python({"kind": "distributed_sampler"} | order)
    with pytest.raises(InputError) as refused:
        order.epoch(sharded(samples), readers, seed, 0)
    (problem,) = refused.value.problems
    assert problem.path == path
    assert problem.rule and problem.value and problem.remedy


def test_ranks_may_be_more_than_shards_where_shards_are_cut():
    for order in KINDS[:8]:
        made = ORDERS.validate_python(order).epoch(sharded([40, 24]), Readers(2, 4, 2, 1), 0, 0)
        assert len(np.unique(made.rank)) == 8


BOUNDS = [
    ({}, [40], 2**64 - 1, 0),
    ({"kind": "litdata_full"}, [40], 2**32 - 2, 0),
    *(
        (STREAMS | {"batching_method": batching}, [20, 20], 2**64 - 2, 1)
        for batching in ("random", "stratified")
    ),
    # as many samples as ranks
    ({"drop_last": True}, [4], 0, 0),
    ({"kind": "accelerate", "drop_last": True}, [8], 0, 0),
    # a block as large as the set; blocks have no part in naive shuffles
    (MOSAICML | {"shuffle_block_size": 40}, [40], 0, 0),
    (MOSAICML | {"shuffle_block_size": 41, "shuffle_algo": "naive"}, [40], 0, 0),
    (MOSAICML | {"shuffle_block_size": 1, "shuffle_algo": "py1b"}, [40], 0, 0),
]


@pytest.mark.parametrize(("order", "samples", "seed", "epoch"), BOUNDS)
def test_what_is_just_allowed_is_read_whole(order, samples, seed, epoch):
    order = ORDERS.validate_python({"kind": "distributed_sampler"} | order)
    made = order.epoch(sharded(samples), SMALL, seed, epoch)
    assert sorted(made.sample.tolist()) == list(range(sum(samples)))


@pytest.mark.parametrize(("seed", "epoch"), [(2**64 - 1, 1), (3, -1), (-1, 3)])
def test_seed_and_epoch_together_are_a_seed_of_the_library(seed, epoch):
    with pytest.raises(InputError, match="seed and epoch are not negative"):
        ORDERS.validate_python({"kind": "distributed_sampler"}).epoch(
            sharded([40]), SMALL, seed, epoch
        )


@pytest.mark.parametrize(
    ("readers", "path"),
    [
        ((0, 2, 1, 2), "nodes"),
        ((2, 0, 1, 2), "ranks"),
        ((2, 2, 1, 0), "batch_size"),
    ],
)
def test_readers_are_at_least_one_of_each(readers, path):
    with pytest.raises(InputError) as refused:
        ORDERS.validate_python(MOSAICML).epoch(sharded([40]), Readers(*readers), 0, 0)
    assert [problem.path for problem in refused.value.problems] == [f"readers.{path}"]


@pytest.mark.parametrize("kind", ["distributed_sampler", "accelerate"])
def test_more_samples_than_torch_permutes_with_32_bits_are_refused(kind, monkeypatch):
    """torch takes 64 bits where 2^32 - 1 over the size is less than 20."""
    assert samplers._MAX_SAMPLES == 214_748_364
    monkeypatch.setattr(samplers, "_MAX_SAMPLES", 10)
    order = ORDERS.validate_python({"kind": kind})
    assert len(order.epoch(sharded([9]), Readers(1, 1, 1, 3), 0, 0).sample) == 9
    with pytest.raises(InputError) as refused:
        order.epoch(sharded([10]), Readers(1, 1, 1, 5), 0, 0)
    assert refused.value.problems[0].path == "data.samples"


def test_accelerate_needs_an_iteration_where_it_drops_the_last_one():
    order = ORDERS.validate_python({"kind": "accelerate", "drop_last": True})
    with pytest.raises(InputError, match="from 8 to 214748364 samples; got 7"):
        order.epoch(sharded([7]), SMALL, 0, 0)


def test_a_torchft_group_for_each_node_will_do():
    order = ORDERS.validate_python({"kind": "torchft", "replica_groups": 2})
    made = order.epoch(sharded([12]), SMALL, 0, 0)
    assert np.bincount(made.rank).tolist() == [3] * 4
    with pytest.raises(InputError, match="must not exceed the 2 replica groups"):
        order.epoch(sharded([12]), Readers(3, 2, 1, 2), 0, 0)


def test_a_chunk_whose_middle_is_on_the_border_is_with_the_worker_before_it():
    """Of 16 samples 8 are each worker's; the middle of the second chunk is at 4 + 8 / 2."""
    order = ORDERS.validate_python({"kind": "litdata_window", "window": 1, "drop_last": False})
    made = order.epoch(sharded([4, 8, 4]), Readers(1, 2, 1, 1), 0, 0)
    assert made.sample[made.rank == 0].max() == 11
    assert sorted(made.sample[made.rank == 1].tolist()) == [12, 13, 14, 15]


def test_the_fullest_node_decides_whether_chunks_stay_in_caches():
    """21 chunks of 7 samples and 1 kB a sample on two nodes: both have 11, one of them in part."""
    readers, samples = Readers(2, 2, 2, 3), [7] * 21
    kept = [samples_of_nodes(KINDS[7], epoch, readers, samples) for epoch in (0, 1, 2)]
    exact = {"kind": "litdata_full", "drop_last": False, "max_cache_size": "77 kB"}
    less = exact | {"max_cache_size": "76.9 kB"}
    for limited, stay in ((exact, True), (less, False)):
        later = samples_of_nodes(limited, 1, readers, samples)
        assert (later == kept[1]) == stay
    # a chunk of 1 MB is too much for the node that has it, and then for both
    own = next(chunk for chunk in range(21) if not kept[0][1] & chunk_of(chunk))
    nbytes = np.full(21, 7000.0)
    nbytes[own] = 1e6
    made = ORDERS.validate_python(exact | {"max_cache_size": "500 kB"})
    found = made.epoch(ShardedSet(np.array(samples), nbytes), readers, 3, 1)
    first = set(found.sample[found.rank < 2].tolist())
    assert first != kept[1][0]
