"""Orders of shuffle buffers, blocks and permutations: the libraries' own answers, every sample
once, and what is refused."""

import json
import random
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest
from pydantic import TypeAdapter

from simshuffle.errors import InputError
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.order import Readers, ShardedSet
from tests import order_libraries as libraries
from tests.shared import needs_peers

ORDER = TypeAdapter(AnyOrder)
KIND_OF = {
    "webdataset": "webdataset",
    "datasets": "hugging_face",
    "ray": "ray_local",
    "levanter": "levanter",
    "marin-levanter": "levanter",
}
SMALL = {
    "webdataset": {"buffer_size": 12, "initial": 4},
    "hugging_face": {"buffer_size": 12},
    "tf_data": {"buffer_size": 12, "cycle_length": 3, "block_length": 2},
    "levanter": {"io_block_size": 6, "window_blocks": 3},
    "corgipile": {"block_size": 4, "buffer_blocks": 3},
    "corgi2": {"block_size": 4, "buffer_blocks": 3},
    "ray_local": {"buffer_size": 12},
    "synchronised": {},
    "own": {"shuffle": "global"},
}


def order(kind, **keys):
    return ORDER.validate_python({"kind": kind, **SMALL[kind], **keys})


def sharded(samples):
    return ShardedSet(np.array(samples, dtype=int), 100.0 * np.array(samples))


SET = sharded(libraries.SHARDS)


def streams(handed_out, readers):
    """The samples of each rank and worker in turn."""
    return [
        handed_out.sample[(handed_out.rank == rank) & (handed_out.worker == worker)].tolist()
        for rank in range(readers.world_size)
        for worker in range(readers.workers)
    ]


# ------------------------------------------------------------------------------------ the libraries


def recorded(name):
    return json.loads((libraries.FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", KIND_OF)
def test_orders_are_those_of_the_library_bit_by_bit(name):
    answers = recorded(name)["answers"]
    assert len(answers) == 3 * len(libraries.CASES[name])
    for answer in answers:
        readers = Readers(*answer["readers"], libraries.BATCH)
        made = ORDER.validate_python({"kind": KIND_OF[name], **answer["order"]})
        handed_out = made.epoch(SET, readers, answer["seed"], answer["epoch"])
        case = {key: answer[key] for key in ("readers", "order", "seed", "epoch")}
        assert streams(handed_out, readers) == answer["streams"], case


@needs_peers
@pytest.mark.parametrize("name", KIND_OF)
# their own warnings, of open files and old modules, are not ours
@pytest.mark.filterwarnings("ignore")
def test_what_is_recorded_is_what_the_library_hands_out(name):
    record = recorded(name)
    try:
        installed = f"{name} {version(name)}"
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    if installed != record["library"]:
        pytest.skip(f"recorded with {record['library']}; installed is {installed}")
    try:
        answers = libraries.answers(name)
    except ImportError as missing:
        pytest.skip(f"{name} needs more than is installed: {missing}")
    assert answers == record["answers"]


# -------------------------------------------------------------------------------- every sample once


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 2), (3, 2, 2)])
def test_every_sample_is_handed_out_once_by_one_worker(kind, shape):
    readers = Readers(*shape, batch_size=4)
    handed_out = order(kind).epoch(SET, readers, seed=3, epoch=1)
    assert sorted(handed_out.sample) == list(range(SET.size))
    assert handed_out.rank.max() == readers.world_size - 1
    rows = zip(handed_out.rank, handed_out.worker, handed_out.position, strict=True)
    lengths = [len(stream) for stream in streams(handed_out, readers)]
    assert [tuple(map(int, row)) for row in rows] == [
        (number // readers.workers, number % readers.workers, place)
        for number, length in enumerate(lengths)
        for place in range(length)
    ]


@pytest.mark.parametrize("kind", SMALL)
def test_what_is_drawn_follows_from_seed_and_epoch(kind):
    readers = Readers(1, 2, 1, batch_size=4)

    def samples(seed, epoch):
        return order(kind).epoch(SET, readers, seed, epoch).sample.tolist()

    assert samples(1, 1) == samples(1, 1)
    assert samples(1, 1) != samples(2, 1)
    # Levanter permutes once, for all epochs
    assert (samples(1, 1) == samples(1, 2)) == (kind == "levanter")


def test_portions_are_named():
    assert {kind: (order(kind).unit, order(kind).block) for kind in SMALL} == {
        "webdataset": ("shard", 1),
        "hugging_face": ("shard", 1),
        "tf_data": ("shard", 1),
        "levanter": ("block", 6),
        "corgipile": ("block", 4),
        "corgi2": ("block", 4),
        "ray_local": ("shard", 1),
        "synchronised": ("sample", 1),
        "own": ("sample", 1),
    }


# ------------------------------------------------------------------------------------ what they are


def sets_of_ranks(made, readers, epoch):
    handed_out = made.epoch(SET, readers, 5, epoch)
    return [set(handed_out.sample[handed_out.rank == r]) for r in range(readers.world_size)]


@pytest.mark.parametrize(
    ("kind", "keys", "local"),
    [
        ("webdataset", {"detshuffle": True}, True),
        ("ray_local", {}, True),
        ("synchronised", {}, True),
        ("own", {"shuffle": "local"}, True),
        ("own", {"shuffle": "global"}, False),
        ("hugging_face", {}, False),
        ("tf_data", {}, False),
        ("corgipile", {}, False),
        ("corgi2", {}, False),
    ],
)
def test_which_orders_are_local_shuffles(kind, keys, local):
    readers = Readers(2, 2, 1, batch_size=4) if kind != "synchronised" else Readers(3, 2, 1, 4)
    sets = [sets_of_ranks(order(kind, **keys), readers, epoch) for epoch in (0, 1)]
    assert (sets[0] == sets[1]) == local


def test_shards_that_ranks_cannot_share_evenly_are_read_by_every_rank():
    readers = Readers(1, 5, 1, batch_size=4)
    handed_out = order("hugging_face").epoch(SET, readers, 0, 0)
    shards = [set(SET.shard_of(handed_out.sample[handed_out.rank == rank])) for rank in range(5)]
    assert min(map(len, shards)) > len(SET.samples) / 2
    alone = order("hugging_face").epoch(SET, Readers(1, 1, 1, 4), 0, 0).sample
    assert streams(handed_out, readers) == [alone[rank::5].tolist() for rank in range(5)]


def test_ranks_of_levanter_take_their_part_of_every_batch():
    alone = order("levanter").epoch(SET, Readers(1, 1, 1, 4), 0, 0).sample.tolist()
    readers = Readers(1, 2, 1, batch_size=4)
    first, second = streams(order("levanter").epoch(SET, readers, 0, 0), readers)
    assert first[:8] == alone[:4] + alone[8:12]
    assert second[:8] == alone[4:8] + alone[12:16]


def test_all_ranks_of_a_synchronised_shuffle_go_through_their_places_alike():
    readers = Readers(3, 2, 1, batch_size=4)
    first, second = (
        order("synchronised").epoch(SET, readers, 0, epoch).sample.reshape(6, -1)
        for epoch in (0, 1)
    )
    moves = [
        [list(old).index(sample) for sample in new] for old, new in zip(first, second, strict=True)
    ]
    assert moves.count(moves[0]) == 6


def test_a_rank_of_corgipile_mixes_no_more_blocks_than_its_buffer_holds():
    even = sharded([12] * 8)
    handed_out = order("corgipile").epoch(even, Readers(1, 2, 1, 4), 0, 0)
    for rank in range(2):
        blocks = handed_out.sample[handed_out.rank == rank] // 4
        for group in blocks.reshape(-1, 12):
            assert sorted(np.unique(group, return_counts=True)[1]) == [4, 4, 4]


def test_corgi2_rewrites_groups_of_blocks_once():
    even = sharded([12] * 8)
    made = order("corgi2")
    places = made.places(even, seed=7)
    assert sorted(places) == list(range(96))
    written = [set(np.flatnonzero(places // 4 == block) // 4) for block in range(24)]
    assert max(map(len, written)) == 3
    # what a rank has in memory is 3 blocks as they lie then
    handed_out = made.epoch(even, Readers(1, 1, 1, 4), 7, 0)
    held = (places[handed_out.sample] // 4).reshape(-1, 12)
    assert [len(set(group)) for group in held] == [3] * 8
    assert (order("corgipile").places(even, seed=7) == np.arange(96)).all()


# ---------------------------------------------------------------------------------- what is refused


def problem(made, data, readers):
    with pytest.raises(InputError) as refused:
        made.epoch(data, readers, 0, 0)
    (found,) = refused.value.problems
    assert found.rule and found.value and found.remedy
    return found


BUFFERED = ("webdataset", "hugging_face", "tf_data", "ray_local")
LARGE = "78 samples of the set"


@pytest.mark.parametrize(
    ("kind", "keys", "data", "ranks", "path", "said"),
    [
        *((kind, {"buffer_size": 79}, SET, 1, "buffer_size", LARGE) for kind in BUFFERED),
        ("levanter", {"shuffle": "era", "era_length": 79}, SET, 1, "era_length", LARGE),
        ("levanter", {"window_blocks": 14}, SET, 1, "window_blocks", LARGE),
        ("corgipile", {"buffer_blocks": 20}, SET, 1, "buffer_blocks", LARGE),
        ("corgi2", {"buffer_blocks": 20}, SET, 1, "buffer_blocks", LARGE),
        # shuffles of shards need shards
        *(
            (kind, {}, sharded([]), 1, "data.samples", "got no shards")
            for kind in (*BUFFERED, "corgipile")
        ),
        # one permutation cannot serve parts of two sizes
        ("synchronised", {}, SET, 4, "data.samples", "Leave out 2."),
    ],
)
def test_what_does_not_fit_the_set_is_refused(kind, keys, data, ranks, path, said):
    found = problem(order(kind, **keys), data, Readers(1, ranks, 1, 4))
    assert found.path == path
    assert said in str(found)


@pytest.mark.parametrize(
    ("kind", "readers", "path", "then"),
    [
        ("webdataset", (1, 2, 7), "readers.workers", "No samples found in dataset"),
        ("hugging_face", (1, 2, 7), "readers.workers", "stops those without shards"),
        ("hugging_face", (1, 5, 13), "readers.workers", "stops those without shards"),
        ("tf_data", (1, 13, 1), "readers.ranks", "empty set"),
        ("ray_local", (1, 13, 1), "readers.ranks", "no block"),
    ],
)
def test_fewer_shards_than_readers_are_refused_with_what_the_library_does(
    kind, readers, path, then
):
    found = problem(order(kind), SET, Readers(*readers, 4))
    assert found.path == path
    assert then in found.rule
    num_readers = readers[1] * (readers[2] if "workers" in path else 1)
    assert order(kind).epoch(sharded([4] * num_readers), Readers(*readers, 4), 0, 1)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        *((kind, {"buffer_size": 78}) for kind in BUFFERED),
        ("levanter", {"shuffle": "era", "era_length": 78}),
        ("levanter", {"window_blocks": 13}),
        ("corgipile", {"block_size": 6, "buffer_blocks": 13}),
    ],
)
def test_a_buffer_as_large_as_the_set_will_do(kind, keys):
    """78 samples; 13 blocks of 6."""
    handed_out = order(kind, **keys).epoch(SET, Readers(1, 1, 1, 4), 0, 0)
    assert sorted(handed_out.sample) == list(range(78))


@pytest.mark.parametrize(
    ("kind", "readers", "value"),
    [
        ("webdataset", (2, 2, 4), "16 workers of all ranks"),
        ("hugging_face", (2, 2, 4), "16 workers of all ranks"),
        # 12 shards are no multiple of 5 ranks: each reads all of them
        ("hugging_face", (1, 5, 13), "13 workers of a rank"),
        ("tf_data", (2, 7, 3), "14 ranks"),
    ],
)
def test_the_readers_that_are_too_many_are_counted(kind, readers, value):
    assert problem(order(kind), SET, Readers(*readers, 4)).value == value


def test_files_of_tf_data_are_read_in_turn_and_replaced_where_they_end():
    """Files of 5, 2, 3 and 1 samples, two open at once, two samples a turn. File 1 has a whole
    block, so that it ends in its next turn with none; file 2 takes its place, and file 3 that of
    file 0, whose last block is not whole."""
    files = sharded([5, 2, 3, 1])
    made = order("tf_data", buffer_size=1, cycle_length=2, block_length=2)
    expected = [*(0, 1), *(5, 6), *(2, 3), 4, *(7, 8), 10, 9]
    assert made._interleave_files(files, [0, 1, 2, 3]).tolist() == expected


def test_tf_data_that_does_not_reshuffle_repeats_its_first_epoch():
    readers = Readers(1, 2, 1, 4)
    first = order("tf_data").epoch(SET, readers, 3, 0).sample.tolist()
    made = order("tf_data", reshuffle=False)
    assert [made.epoch(SET, readers, 3, epoch).sample.tolist() for epoch in (0, 1, 5)] == [
        first
    ] * 3


def webdataset_shuffle(items, size, initial, rng):
    """`webdataset.filters._shuffle` and `pick`, as the library has them."""
    initial, items, buffer = min(initial, size), iter(items), []

    def pick():
        slot = rng.randint(0, len(buffer) - 1)
        picked, buffer[slot] = buffer[slot], buffer[-1]
        buffer.pop()
        return picked

    for item in items:
        buffer.append(item)
        if len(buffer) < size and (more := next(items, None)) is not None:
            buffer.append(more)
        if len(buffer) >= initial:
            yield pick()
    while buffer:
        yield pick()


@pytest.mark.parametrize(("shard_shuffle", "buffer_size", "initial"), [(150, 9, 4), (40, 30, 99)])
def test_many_shards_of_webdataset_are_shuffled_in_a_buffer_that_begins_with_a_hundred(
    shard_shuffle, buffer_size, initial
):
    keys = {"shard_shuffle": shard_shuffle, "buffer_size": buffer_size, "initial": initial}
    made = order("webdataset", detshuffle=True, **keys)
    found = made.epoch(sharded([2] * 300), Readers(1, 1, 1, 4), 5, 2).sample.tolist()
    # the seed and the epoch, the same for both stages
    shards = webdataset_shuffle(range(300), shard_shuffle, 100, random.Random(5 + 2))
    samples = [sample for shard in shards for sample in (2 * shard, 2 * shard + 1)]
    assert found == list(webdataset_shuffle(samples, buffer_size, initial, random.Random(5 + 2)))


@pytest.mark.parametrize(
    ("keys", "samples"),
    [
        ({"buffer_size": 25, "formatted": True}, 2),  # 25 // 10
        ({"buffer_size": 5, "formatted": True}, 1),
        ({"buffer_size": 25, "formatted": True, "max_buffer_input_shards": 4}, 6),
        ({"buffer_size": 25}, 1),
    ],
)
def test_pieces_of_tables_are_a_share_of_the_buffer(keys, samples):
    assert order("hugging_face", **keys).piece_size == samples


def test_parts_of_a_local_shuffle_are_those_that_a_global_one_draws_first():
    """One partition for all epochs, in another order in each."""
    readers = Readers(1, 4, 2, 4)
    parts = sets_of_ranks(order("own", shuffle="global"), readers, 0)
    made = order("own", shuffle="local")
    assert [sets_of_ranks(made, readers, epoch) for epoch in (0, 3)] == [parts] * 2
    # 78 samples of 4 ranks: from 78 r / 4, rounded down
    assert [len(part) for part in parts] == [19, 20, 19, 20]
    first, second = (made.epoch(SET, readers, 5, epoch).sample.tolist() for epoch in (0, 1))
    assert first != second
