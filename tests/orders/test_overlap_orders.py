"""What gradients summed beside the backward pass do to the cost of the exchange; docs/allreduce.md
has 64 to 2048 GPUs. None of it is put in."""

import pytest

from simshuffle import load_scenario, run

AUTHORS, STREAMLINED = "partial-0.1 authors", "partial-0.1 streamlined"


@pytest.fixture(scope="module")
def epochs():
    """The epochs of 64 GPUs by exchange and overlap."""
    few = {"world_size": 64, "workload.dataset.num_samples": 64 * 32 * 30, "epochs": 1}
    table = run(load_scenario("paper/overlap", few)).epochs
    return table.set_index(table["run"].str.replace(" @64 overlap=", " "))


def added(epochs, exchange, overlap):
    """Seconds that an exchange adds to the epoch."""
    seconds = epochs["epoch_s"]
    return seconds[f"{exchange} {overlap}"] - seconds[f"local {overlap}"]


@pytest.mark.parametrize("overlap", ["ddp", "horovod"])
def test_overlap_shortens_every_epoch(epochs, overlap):
    for exchange in ("local", AUTHORS, STREAMLINED):
        whole = epochs["epoch_s"]
        assert whole[f"{exchange} {overlap}"] < 0.95 * whole[f"{exchange} none"]


@pytest.mark.parametrize("overlap", ["ddp", "horovod"])
def test_the_authors_exchange_costs_fewer_seconds_for_the_last_gradients_travel_meanwhile(
    epochs, overlap
):
    assert added(epochs, AUTHORS, overlap) < added(epochs, AUTHORS, "none")
    shown = epochs["allreduce_exposed_s"]
    assert shown[f"{AUTHORS} {overlap}"] < 0.8 * shown[f"local {overlap}"]
    assert shown[f"{AUTHORS} none"] == pytest.approx(shown["local none"], rel=0.01)


def test_it_is_a_larger_share_of_the_shorter_epoch(epochs):
    share = {
        overlap: added(epochs, AUTHORS, overlap) / epochs["epoch_s"][f"local {overlap}"]
        for overlap in ("none", "ddp")
    }
    assert share["ddp"] > share["none"] > 0.05
