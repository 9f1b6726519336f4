"""The verb loader: what it counts, what it says of a recorded order, and what it refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.studies.loader import request
from simshuffle.studies.loader.cell import (
    LoaderCell,
    collect_mixtures,
    epoch_rows,
    summarize_order,
)
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.order_file import read_order
from simshuffle.studies.loader.shape import DataSetShape
from simshuffle.study.registry import read_folder
from simshuffle.workload.orders.fetching import divide_into_pieces
from simshuffle.workload.orders.mixture import Mixture
from simshuffle.workload.orders.order import COLUMNS, Readers, ShardedSet
from tests.toy_orders import Drawn, Kept

DATA = ShardedSet(np.full(16, 16), np.full(16, 1.6e6))
READERS = Readers(nodes=2, ranks=2, workers=2, batch_size=8)
SHAPE = ["--samples", "256", "--shards", "16", "--nodes", "2", "--batch-size", "8"]
DRAWN = ["--gpus", "2", "--epochs", "2", "--processes", "1"]
OF_ALL = DataSetShape(
    samples=256,
    samples_per_shard=16,
    shard_nbytes=1000,
    nodes=2,
    gpus=2,
    workers=2,
    batch_size=8,
    cache_nbytes=None,
    epochs=2,
)
TOYS = {"drawn": Drawn(), "kept": Kept()}


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """The orders of tests/toy_orders.py in place of all others."""
    monkeypatch.setattr(
        request, "kinds_of", lambda _: {name: type(of) for name, of in TOYS.items()}
    )
    monkeypatch.setattr(request, "default_orders", lambda shape: TOYS)
    monkeypatch.chdir(tmp_path)


def table_of(order, epochs=2):
    """A recorded order as a table."""
    found = [order.epoch(DATA, READERS, 5, epoch) for epoch in range(epochs)]
    tables = [
        pd.DataFrame({"epoch": epoch, **{name: getattr(of, name) for name in COLUMNS[1:]}})
        for epoch, of in enumerate(found)
    ]
    return pd.concat(tables, ignore_index=True)


def checked(table, capsys, *more):
    """What the verb prints as JSON of that table."""
    table.to_csv("mine.csv", index=False)
    assert main(["study", "loader", "--check", "mine.csv", *SHAPE, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_fetched_is_held_against_an_object_store(toys, capsys):
    """256 requests of 100 kB over 8 connections: 32 times 0.1 s and 1 ms; 16 of 1.6 MB: twice 0.1 s
    and 16 ms. A hundredth of a dollar for 256 requests, and one for a GB."""
    store = "s3:latency=100 ms,connection_bandwidth=100 MB/s,price_per_request=0.0000390625"
    more = ["--store", f"{store},price_per_gigabyte=1", "--out", "stored"]
    assert main(["study", "loader", *SHAPE, *DRAWN, *more]) == 0
    assert "object store" in capsys.readouterr().out
    table = pd.read_csv("stored/store.csv").set_index("loader")
    assert table.loc["drawn", "first_s"] == pytest.approx(32 * 0.101)
    assert table.loc["kept", "first_s"] == pytest.approx(2 * 0.116)
    assert table["limit"].tolist() == ["connections"] * 2
    assert table.loc["drawn", "first_usd"] == pytest.approx(0.01 + 0.0256)
    assert (table.loc["kept", "last_s"], table.loc["kept", "last_usd"]) == (0.0, 0.0)


def test_the_table_of_all_orders(toys, capsys):
    assert main(["study", "loader", *SHAPE, *DRAWN, "--out", "all"]) == 0
    assert "place" in capsys.readouterr().out
    loaders = pd.read_csv("all/loaders.csv").set_index("loader")
    drawn, kept = loaders.loc["drawn"], loaders.loc["kept"]
    # every node has room for a quarter more than it reads in an epoch, 128 samples of 100 kB
    assert (kept["first_requests"], kept["first_nbytes"]) == (16, 25_600_000)
    assert (kept["last_requests"], kept["hit_rate"], kept["moves"]) == (0, 1.0, 0.0)
    assert (drawn["first_requests"], drawn["first_nbytes"]) == (256, 25_600_000)
    assert (drawn["held_nbytes"], kept["held_nbytes"]) == (16_000_000, 12_800_000)
    assert drawn["moves"] == pytest.approx(0.5, abs=0.1)
    assert (drawn["never"], drawn["surplus"], drawn["imbalance"]) == (0, 0, 0)
    # samples stand sorted by 10 labels, and rank 0 has the first quarter: 2.56 of them
    share = np.bincount(np.arange(64) * 10 // 256) / 64
    wanted = np.mean(
        [
            sum(p * np.log(p / q) for p, q in zip(of, whole, strict=True) if p)
            for whole in [np.bincount(np.arange(256) * 10 // 256) / 256]
            for rank in range(4)
            for of in [np.bincount((np.arange(64) + 64 * rank) * 10 // 256, minlength=10) / 64]
        ]
    )
    assert len(share) == 3
    assert kept["divergence"] == pytest.approx(wanted)
    windows = pd.read_csv("all/windows.csv")
    assert windows.groupby("loader").size().tolist() == [10, 10]


def test_without_a_cache_workers_share_nothing_and_keep_nothing(toys, capsys):
    words = ["study", "loader", *SHAPE, *DRAWN, "--cache", "0", "--order", "kept", "--json"]
    assert main(words) == 0
    (kept,) = json.loads(capsys.readouterr().out)["loaders"]
    # each of the 8 workers has samples of all 4 shards of its rank
    assert (kept["first_requests"], kept["last_requests"]) == (32, 32)


def test_a_recorded_order_is_counted_as_the_one_that_was_drawn(toys, capsys):
    assert (
        main(["study", "loader", *SHAPE, *DRAWN, "--seed", "5", "--order", "kept", "--json"]) == 0
    )
    drawn = json.loads(capsys.readouterr().out)
    recorded = checked(table_of(Kept()), capsys)
    for table in ("loaders", "epochs", "windows", "store"):
        for row in (*drawn[table], *recorded[table]):
            del row["loader"]
    assert recorded == drawn


def test_the_rows_of_a_recorded_order_may_stand_in_any_order(here, capsys):
    """Rank 0 hands out sample 8 in both epochs, and so does rank 3 on the other node. The first
    row counts, of rank 0, though the second epoch stands in the file from the last row on."""
    table = table_of(Kept())
    table.loc[
        (table["rank"] == 3) & (table["worker"] == 1) & (table["position"] == 5), "sample"
    ] = 8
    found = checked(table, capsys)
    epochs = [epoch for _, epoch in table.groupby("epoch")]
    assert checked(pd.concat([epochs[0], epochs[1][::-1]]), capsys) == found
    assert found["loaders"][0]["moves"] == 0.0


def test_the_folder_of_a_recorded_order_stands_alone(here, capsys):
    table_of(Kept()).to_parquet("mine.parquet")
    assert main(["study", "loader", "--check", "mine.parquet", *SHAPE, "--out", "found"]) == 0
    shown = capsys.readouterr().out
    assert "No sample ever comes to another node" in shown
    assert "Every rank has the same samples in every epoch" in shown
    (here / "mine.parquet").unlink()
    assert main(["results", "show", "found"]) == 0
    assert "No sample ever comes to another node" in capsys.readouterr().out
    assert main(["results", "verify", "found"]) == 0
    assert read_folder(here / "found").meta["asked"]["order_file"].endswith(".parquet")


def test_what_is_lost_repeated_and_unequal_is_said(here, capsys):
    table = table_of(Kept(), 1)
    table.loc[table["sample"] == 7, "sample"] = 8
    last = (table["rank"] == 3) & (table["worker"] == 1) & (table["position"] >= 30)
    table = table[~last]
    table.to_csv("mine.csv", index=False)
    assert main(["study", "loader", "--check", "mine.csv", *SHAPE, "--out", "found"]) == 0
    shown = capsys.readouterr().out
    assert "Never handed out: 3 of 256" in shown
    assert "1 rows repeat" in shown
    assert "Ranks are not equal: one has 0.79 % more" in shown
    assert "A single epoch" in shown
    (row,) = pd.read_csv("found/loaders.csv").to_dict("records")
    assert (row["never"], row["surplus"]) == (3, 1)
    assert row["imbalance"] == pytest.approx(64 / 63.5 - 1)


def test_what_an_order_takes_grows_with_the_samples_of_its_epochs():
    cell = LoaderCell("drawn", OF_ALL, Drawn())  # 256 samples, twice
    assert (cell.cost, cell.memory) == pytest.approx((0.1 + 3e-6 * 512, 200e6 + 200 * 512), 1e-9)


def test_four_nodes_of_four_ranks_read_three_epochs_unless_somebody_says_otherwise():
    (cell, *_) = request.request(LoaderOptions(order=("own:shuffle=global",))).values
    shape = cell.shape
    assert (shape.nodes, shape.gpus, shape.workers, shape.batch_size) == (4, 4, 2, 16)
    assert (shape.epochs, shape.samples, len(shape.data.samples)) == (3, 16_384, 64)


def test_two_epochs_in_a_row_by_hand():
    """Requests are of the first and of the last; the largest imbalance is 66 of 60 samples."""
    plain = {"requests": 9, "nbytes": 900, "hits": 3, "samples": 240, "held_nbytes": 70}
    plain |= {"never": 16, "surplus": 0, "most": 66, "divergence": 0.2, "moves": np.nan}
    plain |= {"batch_companions": np.nan, "rank_companions": np.nan}
    later = {"requests": 5, "nbytes": 500, "hits": 64, "samples": 256, "held_nbytes": 60}
    later |= {"never": 0, "surplus": 2, "most": 68, "divergence": 0.4, "moves": 0.5}
    later |= {"batch_companions": 0.25, "rank_companions": 0.75}
    orders = [Kept().epoch(DATA, READERS, 0, epoch) for epoch in range(2)]
    shards = np.array([4.0, 2.0, np.nan])
    row = summarize_order(orders, OF_ALL, [plain, later], shards)
    entropy = row.pop("position_entropy")
    assert 0.0 <= entropy <= 1.0
    assert row == {
        "first_requests": 9,
        "first_nbytes": 900,
        "last_requests": 5,
        "last_nbytes": 500,
        "hit_rate": 0.25,
        "held_nbytes": 70,
        "never": 16,
        "surplus": 2,
        "imbalance": pytest.approx(0.1),
        "batch_companions": 0.25,
        "rank_companions": 0.75,
        "moves": 0.5,
        "divergence": pytest.approx(0.3),
        "shards": 3.0,
        "end_shards": 2.0,
    }


def test_an_epoch_is_compared_with_the_one_before():
    """A rank keeps its 64 of 256 samples: of its 63 others any 7 share the next batch."""
    orders = [Kept().epoch(DATA, READERS, 0, epoch) for epoch in range(3)]
    cell = LoaderCell("kept", OF_ALL, Kept())
    positions = Kept().places(DATA, 0)
    pieces = divide_into_pieces(DATA, Kept().unit, Kept().block, positions)
    first, second, third = epoch_rows(orders, cell.shape, pieces)
    assert all(np.isnan(first[f"{name}_companions"]) for name in ("batch", "rank"))
    assert np.isnan(first["moves"])
    for row in (second, third):
        assert (row["rank_companions"], row["moves"]) == (1.0, 0.0)
        assert row["batch_companions"] == pytest.approx(7 / 63, abs=0.03)
    assert [row["epoch"] for row in (first, second, third)] == [0, 1, 2]
    assert (first["samples"], first["most"]) == (256, 64)


def test_mixtures_alone_say_what_their_sources_have():
    outcomes = {
        "a": SimpleNamespace(values={"sources": [{"source": 1}]}),
        "b": SimpleNamespace(values={}),
    }
    cells = [SimpleNamespace(label=label) for label in outcomes]
    assert collect_mixtures(cells, outcomes) == {"mixtures": {"a": [{"source": 1}]}}
    assert collect_mixtures(cells[1:], outcomes) == {}


@pytest.mark.parametrize(
    ("shard", "block", "in_memory", "window"), [(16, 4, 4, 16), (8, 2, 8, 32), (3, 1, 16, 64)]
)
def test_buffers_hold_no_more_than_a_quarter_of_what_is_read(shard, block, in_memory, window):
    """256 samples on two nodes of two ranks with two workers: a quarter is 64 of all, 32 of a node,
    16 of a rank and 8 of a worker; of a shard it is a block, of which one is the least."""
    orders = request.default_orders(OF_ALL.model_copy(update={"samples_per_shard": shard}))
    for name in ("corgipile", "corgi2"):
        assert (orders[name].block_size, orders[name].buffer_blocks) == (block, in_memory)
    levanter = orders["levanter block"]
    blocks = levanter.io_block_size, levanter.era_length, levanter.window_blocks
    assert blocks == (block, 64, window)
    assert orders["mosaicml py1e"].shuffle_block_size == 32
    assert [orders[name].buffer_size for name in ("tf_data", "webdataset")] == [16, 8]


def test_every_registered_order_is_looked_at():
    known = request.kinds_of(request.AnyOrder)
    assert {order.kind for order in request.default_orders(OF_ALL).values()} == {
        kind for kind, order in known.items() if not issubclass(order, Mixture)
    }


# ------------------------------------------------------------------------- files of recorded orders

# two epochs of two ranks: rank 0 has workers of two samples and one, rank 1 one worker of one
OWNERS = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]


def recorded_rows(epochs=(0, 1), owners=OWNERS):
    """Rows of epoch, rank, worker, position and sample; the samples of an epoch count down."""
    return [
        [epoch, rank, worker, position, 9 - k - 4 * n]
        for n, epoch in enumerate(epochs)
        for k, (rank, worker, position) in enumerate(owners)
    ]


def read_rows(tmp_path, rows, columns=COLUMNS):
    path = tmp_path / "mine.csv"
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return read_order(path)


def test_a_recorded_order_has_its_rows_sorted_and_its_counts(tmp_path):
    rows = recorded_rows()
    found = read_rows(tmp_path, rows[::-1])
    assert (found.ranks, found.workers, found.samples) == (2, 2, 10)
    first, second = found.epochs
    assert first.sample.tolist() == [9, 8, 7, 6] and second.sample.tolist() == [5, 4, 3, 2]
    assert first.rank.tolist() == [0, 0, 0, 1] and first.position.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("change", "path", "rule", "value"),
    [
        # rows count from 1; four of each epoch
        (lambda rows: recorded_rows((0, 2)), "row 5: epoch", "there is no epoch 1", "2"),
        (lambda rows: recorded_rows((1, 2)), "row 1: epoch", "there is no epoch 0", "1"),
        (lambda rows: rows[:7], "row 5: rank", "epoch 1 has none of rank 1", ""),
        (
            lambda rows: [*rows, [1, 0, 0, 3, 0]],
            "row 9: position",
            "worker 0 of rank 0 in epoch 1 must be 0, 1, 2 and so on: this position follows a gap",
            "3",
        ),
        (
            lambda rows: [*rows[:4], [0, 0, 1, 0, 7], *rows[4:]],
            "row 5: position",
            "worker 1 of rank 0 in epoch 0 must be 0, 1, 2 and so on: this position is there twice",
            "0",
        ),
        (
            lambda rows: [*rows, [1, 0, 1, 1, 0]],
            "row 5: epoch",
            "as many rows as epoch 0, 4",
            "5 rows",
        ),
        (lambda rows: [*rows, [1, 0, 1, -1, 0]], "row 9: position", "whole number from 0", "-1"),
        (lambda rows: [*rows, [1, 0, 1, 0.5, 0]], "row 9: position", "whole number from 0", "0.5"),
        (lambda rows: [*rows, [1, 0, 1, "x", 0]], "row 9: position", "whole number from 0", "x"),
        (
            lambda rows: [*rows, [0, 600_000, 0, 0, 0]],
            "rank",
            "every rank must hand out samples in every epoch: 600001 ranks need more rows",
            "9 rows",
        ),
    ],
)
def test_what_is_wrong_with_a_recorded_order_is_said_with_its_row(
    change, path, rule, value, tmp_path
):
    with pytest.raises(InputError) as raised:
        read_rows(tmp_path, change(recorded_rows()))
    (problem,) = raised.value.problems
    assert (problem.path, problem.value) == (path, value)
    assert rule in problem.rule


def test_files_that_are_no_order_are_refused(tmp_path):
    with pytest.raises(InputError, match="Add worker and position;"):
        read_rows(tmp_path, [[0, 0, 0]], ["epoch", "rank", "sample"])
    with pytest.raises(InputError, match="a row for each sample"):
        read_rows(tmp_path, [])
    with pytest.raises(InputError, match="must be a CSV or Parquet file"):
        read_order(tmp_path / "mine.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_order(tmp_path / "none.csv")
