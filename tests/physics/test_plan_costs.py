"""What a plan costs and finds, worked out by hand."""

import pytest

from simshuffle import plan_training
from simshuffle.extensions.planning.cells import (
    SEARCH_PRECISION,
    FileSystemCell,
    epoch_shares,
    find_smallest_rate,
)
from simshuffle.extensions.planning.costs import MachineNeeds, cheapest_strategy, training_seconds
from simshuffle.extensions.planning.hidden import find_largest_hidden
from simshuffle.extensions.planning.months import find_fewest
from simshuffle.job.sim.simulate import simulate
from simshuffle.study.store import Memory, run_and_store
from tests.small import small

PFS, COPY, LOCAL = "global_shuffle:source=pfs", "global_shuffle:source=ssd", "local_shuffle"
PARTIAL = "partial_local_shuffle:exchange_fraction=0.1"


def opens_bound(**values):
    """8 ranks that read 8,000 tiny files: only opening them takes time, beside computing."""
    return small(
        **{
            "epochs": 2,
            "workload__exchange": PFS,
            "workload__dataset__num_samples": 8000,
            "workload__dataset__sample_size": {"mean": "1 kB", "std": "0 B"},
            "workload__dataset__decode": "0 s",
            "cluster__parallel_file_system__latency": "0 s",
            **values,
        }
    )


def test_a_training_is_staging_the_epochs_that_are_known_and_the_last_one_again():
    # 10 s of staging, a cold epoch of 30 s, and 88 + 1 warm ones of 20 s
    assert training_seconds(10.0, [30.0, 20.0], 90) == 10 + 30 + 89 * 20
    assert training_seconds(10.0, [30.0, 20.0], 1) == 10 + 30


def test_cost_is_host_hours_and_what_is_bought_once():
    # 4 hosts for 2 h at 12.5; 4 x 0.5 TB at 80; 10 GB/s at 100; 5,000 files/s at 0.01
    needs = MachineNeeds(4, 0.5e12, 10e9, 5000.0)
    prices = {"host-hour": 12.5, "ssd-tb": 80.0, "pfs-gbs": 100.0, "pfs-files": 0.01}
    assert needs.time_cost(prices, 7200.0) == 100.0
    assert needs.storage_cost(prices) == pytest.approx(160.0 + 1000.0 + 50.0)
    assert needs.cost(prices, 7200.0) == pytest.approx(1310.0)
    assert needs.cost({"host-hour": 1.0}, 3600.0) == 4.0


def test_of_equal_costs_the_strategy_that_mixes_more_is_taken():
    costs, mixing = {"local": 100.0, "partial": 100.5, "global": 103.0}, {
        "local": 0.0, "partial": 0.1, "global": 2.0,
    }  # fmt: skip
    assert cheapest_strategy(costs, mixing, 0.0) == "local"
    assert cheapest_strategy(costs, mixing, 0.01) == "partial"
    assert cheapest_strategy(costs, mixing, 0.03) == "global"
    assert cheapest_strategy({}, {}, 0.01) == ""


@pytest.mark.parametrize("border", [0.37, 1.0, 5e4])
@pytest.mark.parametrize("guess", [1e-3, 1.0, 2e5])
def test_bisection_finds_the_smallest_number_that_is_enough(border, guess):
    for known in ({}, {"precision": 1.03}, {"precision": 1.03, "low": border / 1.01}):
        found = find_smallest_rate(lambda value: float(value < border), 0.5, guess, 1e6, **known)
        assert border <= found <= known.get("precision", SEARCH_PRECISION) * border


@pytest.mark.parametrize("border", [1, 7, 640, 50_000])
@pytest.mark.parametrize("guess", [1, 300, 50_000])
def test_the_largest_exchange_that_is_hidden_is_known_to_1_percent(border, guess):
    """What n samples add is n / border of the tolerance, or rises from nothing just before."""
    for added in (lambda n: 0.01 * n / border, lambda n: 0.0 if n <= border else 0.5):
        tried: list[int] = []

        def share(n, added=added, tried=tried):
            tried.append(n)
            return added(n)

        largest = find_largest_hidden(share, 0.01, guess, 60_000)
        assert largest <= border <= 1.01 * largest + 1
        assert min(n for n in tried if added(n) > 0.01) <= 1.01 * largest + 1
        assert len(tried) < 40
    assert find_largest_hidden(lambda n: 0.0, 0.01, guess, 60_000) == 60_000
    assert find_largest_hidden(lambda n: 1.0, 0.01, guess, 60_000) == 0


@pytest.mark.parametrize("border", [0, 1, 2, 5, 64, 100])
def test_the_fewest_spares_are_found(border):
    assert find_fewest(lambda count: count >= border, 100) == border
    assert find_fewest(lambda count: count >= 101, 100) is None
    assert find_fewest(lambda count: count >= 1, 0) is None


def test_shares_count_waiting_for_others_where_they_are_busy():
    rows = {
        "epoch": [1, 2, 2, 2],
        "label": ["I/O", "I/O", "GE+WU", "FW+BW"],
        "cause": ["", "", "I/O", ""],
        "seconds": [9.0, 1.0, 2.0, 7.0],
    }
    assert epoch_shares(rows, 2) == {"I/O": pytest.approx(0.3), "FW+BW": pytest.approx(0.7)}


def test_the_smallest_open_rate_is_that_which_hides_behind_computing():
    """N files are opened in an epoch of T = N / F. Computing takes B of it, so that I/O takes less
    than 5 % from F = 0.95 N / B on. What is loaded before the first batch and after the last open
    is 1 batch of 100."""
    scenario = opens_bound()
    found = FileSystemCell(scenario.to_dict(), "global-pfs", 0.05).run(lambda share: None).values
    ample = max(found["points"], key=lambda row: (row["files_per_s"], row["bytes_per_s"]))
    busy = ample["epoch"] * (1.0 - ample["io"])
    by_hand = 0.95 * 8000 / busy
    alone = [
        row["files_per_s"]
        for row in found["points"]
        if row["bytes_per_s"] == ample["bytes_per_s"] and row["io"] <= 0.05
    ]
    assert min(alone) == pytest.approx(by_hand, rel=0.03)
    assert found["alone"][0] == min(alone)
    # each worker opens a file and then reads it: with both rates it is N (1/F + size/B), so both
    # must be twice as large
    for both, one in zip(("files_per_s", "bytes_per_s"), found["alone"], strict=True):
        assert found[both] == pytest.approx(2 * one, rel=0.03)
    assert found["io"] <= 0.05


@pytest.mark.parametrize("exact", [True, False])
def test_a_search_that_is_interrupted_goes_on_with_what_it_has_simulated(monkeypatch, exact):
    begun: list[int] = []

    def counted(*words, **options):
        if len(begun) == 5:
            begun.append(0)
            raise KeyboardInterrupt
        begun.append(1)
        return simulate(*words, **options)

    monkeypatch.setattr("simshuffle.extensions.planning.cells.simulate", counted)
    cell, store = FileSystemCell(opens_bound().to_dict(), "global-pfs", 0.05, exact), Memory()
    with pytest.raises(KeyboardInterrupt):
        run_and_store(cell, "search", store, lambda share: None)
    assert run_and_store(cell, "search", store, lambda share: None) is None
    points = store.outcomes["search"].values["points"]
    assert sum(begun) == len(points) > 5  # each was simulated once


def test_no_file_system_helps_where_something_else_takes_the_time():
    # a worker waits 1 s for every file, whatever the servers do
    scenario = opens_bound(
        cluster__parallel_file_system__latency="1 s", workload__dataset__num_samples=800
    )
    found = FileSystemCell(scenario.to_dict(), "global-pfs", 0.05).run(lambda share: None).values
    assert found["files_per_s"] is None and found["bytes_per_s"] is None
    assert found["io"] > 0.9 and len(found["points"]) == 1


def two_prices(**prices):
    scenario = opens_bound(
        cluster__parallel_file_system__open_rate="100 k/s", workload__dataset__num_samples=800
    )
    result = plan_training(scenario, strategy=[PFS, COPY], prices=prices, progress=False)
    return result.tables["strategies"].set_index("strategy")


def test_a_price_decides_between_a_copy_and_the_file_system():
    """Hosts keep 800 x 1 kB each: 8 hosts 6.4 MB in all."""
    table = two_prices(**{"host-hour": 0.0, "ssd-tb": 1e7, "pfs-files": 1e-5})
    assert table["storage_cost"].tolist() == pytest.approx([1.0, 6.4e6 / 1e12 * 1e7])
    assert table["chosen"].tolist() == [True, False]
    table = two_prices(**{"host-hour": 0.0, "ssd-tb": 1e5, "pfs-files": 1e-5})
    assert table["chosen"].tolist() == [False, True]
    assert table.loc["global-ssd", "cost"] == pytest.approx(0.64)


def machine(capacity):
    """24 hosts of 4 GPUs and 1.56 TB of samples: a shard of a host is 65 GB."""
    return small(
        **{
            "cluster__topology__hosts": 24,
            "cluster__host__gpus": 4,
            "cluster__ssd__capacity": capacity,
            "cluster__parallel_file_system__read_bandwidth": "10 GB/s",
            "world_size": 96,
            "workload__exchange": PFS,
            "workload__dataset__num_samples": 19_200,
            "workload__dataset__sample_size": {"mean": "81.25 MB", "std": "0 B"},
            "workload__dataset__decode": "100 ms",
        }
    )


@pytest.fixture(scope="module")
def plans():
    """Of SSDs of 64 GB and 1.6 TB."""
    named = [PFS, COPY, LOCAL, PARTIAL]
    return {
        capacity: plan_training(machine(capacity), strategy=named, progress=False)
        for capacity in ("64 GB", "1.6 TB")
    }


def test_small_ssds_read_from_the_file_system_and_large_ones_do_not(plans):
    small_ones, large_ones = (
        of.tables["strategies"].set_index("strategy") for of in plans.values()
    )
    assert small_ones["fits"].tolist() == [True, False, False, False]
    assert large_ones["fits"].all()
    assert small_ones["kept_nbytes"].tolist() == pytest.approx([0, 1.56e12, 65e9, 71.5e9])
    assert small_ones.index[small_ones["chosen"]].tolist() == ["global-pfs"]
    assert large_ones.index[large_ones["chosen"]].tolist() == ["local"]
    # 1.56 TB at 10 GB/s take 156 s, and then one or two of 20 batches are left; an SSD reads a
    # shard of 65 GB at 3 GB/s in 21.7 s, and each worker decodes 10 batches of 1 s between
    assert 156.0 < large_ones.loc["global-pfs", "epoch_s"] < 156.0 * (1 + 2 / 20)
    assert large_ones.loc["local", "epoch_s"] == pytest.approx(65 / 3 + 10, rel=0.05)


def test_the_choice_hangs_on_the_room_for_a_shard(plans):
    for capacity, side in (("64 GB", 1), ("1.6 TB", -1)):
        turns = plans[capacity].tables["turns"]
        (turn,) = turns[turns["input"] == "capacity"].to_dict("records")
        assert turn["value"] == pytest.approx(65e9, rel=1e-3)
        assert (turn["factor"] - 1.0) * side > 0
        assert {turn["before"], turn["after"]} == {"local", "global-pfs"}
