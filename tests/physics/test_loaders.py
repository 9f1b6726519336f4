"""What loaders do, on one shape: docs/reference/loaders.md has the numbers, and they are those."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.request import request
from simshuffle.studies.loader.tables import STORED

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "loaders.md"
SHAPE = LoaderOptions(samples=4096, shards=128, nodes=4, gpus=2, workers=2, batch_size=8, epochs=3)
NBYTES = 4096 * 100_000
RANK_PAIRS, BATCH_PAIRS = 511 / 4095, 7 / 4095

RANDOM = ["global", "distributed_sampler", "mosaicml naive"]
SAME_EVERY_EPOCH = ["levanter full", "levanter era", "levanter block"]
RANKS_KEEP = [
    *("local", "synchronised", "mosaicml py1s", "mosaicml py2s", "litdata window", "webdataset"),
    *("ray_local", *SAME_EVERY_EPOCH),
]
NODES_KEEP = ["mosaicml py1b", "mosaicml py1br", "mosaicml py1e", "litdata full, kept"]
NODES_CHANGE = ["litdata full, not kept", "hugging_face", "tf_data", "corgipile", "corgi2"]
FETCHED_AGAIN = ["mosaicml naive", "mosaicml py1s", "mosaicml py2s", *SAME_EVERY_EPOCH]


@pytest.fixture(scope="module")
def loaders():
    rows = [cell.run(lambda share: None).values["loaders"][0] for cell in request(SHAPE).values]
    return pd.DataFrame(rows, columns=list(STORED["loaders"].columns)).set_index("loader")


def test_every_loader_is_of_one_of_the_three_sorts(loaders):
    assert sorted(loaders.index) == sorted(RANDOM + RANKS_KEEP + NODES_KEEP + NODES_CHANGE)
    assert (loaders["problem"] == "").all()
    assert (loaders[["never", "surplus", "imbalance"]] == 0).all(axis=None)


@pytest.mark.parametrize("name", RANDOM)
def test_who_meets_whom_again_is_chance(name, loaders):
    row = loaders.loc[name]
    assert row["rank_companions"] == pytest.approx(RANK_PAIRS, rel=0.02)
    assert row["batch_companions"] == pytest.approx(BATCH_PAIRS, rel=0.25)
    assert row["moves"] == pytest.approx(3 / 4, abs=0.02)


@pytest.mark.parametrize("name", RANKS_KEEP)
def test_ranks_have_the_same_samples_in_every_epoch(name, loaders):
    row = loaders.loc[name]
    assert (row["rank_companions"], row["moves"]) == (1.0, 0.0)


@pytest.mark.parametrize("name", SAME_EVERY_EPOCH)
def test_every_epoch_is_the_same(name, loaders):
    row = loaders.loc[name]
    assert (row["batch_companions"], row["position_entropy"]) == (1.0, 0.0)


@pytest.mark.parametrize("name", NODES_KEEP)
def test_nodes_have_the_same_samples_in_every_epoch_and_ranks_have_not(name, loaders):
    row = loaders.loc[name]
    assert row["moves"] == 0.0
    assert row["rank_companions"] == pytest.approx(0.5, abs=0.02)
    assert row["last_requests"] == 0


@pytest.mark.parametrize("name", NODES_CHANGE)
def test_shards_or_blocks_come_to_other_nodes(name, loaders):
    row = loaders.loc[name]
    assert row["moves"] == pytest.approx(3 / 4, abs=0.05)
    # those of a shard or a block stay together
    assert RANK_PAIRS < row["rank_companions"] < 1.5 * RANK_PAIRS
    assert 0.6 < row["last_nbytes"] / NBYTES < 0.9


@pytest.mark.parametrize("name", ["litdata full, kept", "litdata full, not kept", "litdata window"])
def test_samples_of_a_chunk_share_batches_again(name, loaders):
    assert loaders["batch_companions"][name] > 100 * BATCH_PAIRS


@pytest.mark.parametrize("name", ["mosaicml py1s", "mosaicml py2s"])
def test_halves_of_a_shard_go_to_two_nodes_where_canonical_nodes_are_as_small(name):
    (cell,) = (cell for cell in request(SHAPE).values if cell.label == name)
    data = cell.shape.data
    order = cell.order.epoch(data, cell.shape.readers, cell.shape.seed, 0)
    for node in range(4):
        assert len(np.unique(data.shard_of(order.sample[order.rank // 2 == node]))) == 64


def test_a_cache_as_large_as_the_share_of_a_node_does_or_does_not_do(loaders):
    once = (loaders["first_nbytes"] == NBYTES).to_dict()
    assert [name for name, whole in once.items() if not whole] == FETCHED_AGAIN


def test_the_page_has_these_numbers(loaders):
    rows = [
        f"| {name} | {row['unit']} | {row['first_requests']:.0f} | {row['last_requests']:.0f} |"
        f" {row['moves']:.2f} | {row['rank_companions']:.2f} | {row['batch_companions']:.4f} |"
        f" {row['shards']:.1f} |"
        for name, row in loaders.iterrows()
    ]
    page = re.findall(r"^\| .* \| (?:sample|block|shard) \|.*$", PAGE.read_text(), re.MULTILINE)
    assert page == rows
