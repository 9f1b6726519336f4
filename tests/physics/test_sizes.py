"""What a rank holds, reads and sends, worked out by hand: samples are conserved, and of equal
samples every rank has its share."""

import numpy as np
import pandas as pd
import pytest

from simshuffle import sizes
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from tests.small import small

N, M, NBYTES = 160, 4, 1000.0
EQUAL = {
    "workload__dataset__num_samples": N,
    "workload__dataset__sample_size": {"mean": "1 kB", "std": "0 B"},
    "world_size": M,
    "epochs": 2,
}


def ranks(exchange, **more):
    scenario = small(**EQUAL, workload__exchange=exchange, **more)
    return sizes(scenario, progress=False)


@pytest.mark.parametrize("exchange", ["local_shuffle", "global_shuffle:source=ssd"])
def test_equal_shards_are_a_share_each_and_nothing_is_sent(exchange):
    table = ranks(exchange).tables["ranks"]
    assert (table["samples"] == N // M).all()
    assert (table["held_nbytes"] == N // M * NBYTES).all()
    assert (table[["sent_nbytes", "received_nbytes"]] == 0).all(axis=None)
    # whatever a rank trains on it reads once, from storage or from memory
    read = table["read_nbytes"] + table["cached_nbytes"]
    assert read.tolist() == pytest.approx([N // M * NBYTES] * M)


def test_a_quarter_of_a_shard_is_sent_and_as_much_received():
    table = ranks("partial_local_shuffle:exchange_fraction=0.25").tables["ranks"]
    # 10 steps of one sample a rank; a rank that draws itself keeps its sample
    assert table["sent_nbytes"].max() <= 0.25 * N / M * NBYTES
    assert table["sent_nbytes"].sum() == table["received_nbytes"].sum()
    # every step is a permutation of ranks: what a rank gives away it gets back in number
    assert (table["sent_nbytes"] == table["received_nbytes"]).all()
    assert table["sent_nbytes"].sum() > 0.5 * 0.25 * N * NBYTES


def test_what_a_rank_receives_is_what_it_owns_afterwards_and_did_not_before():
    """Worked out by owners, and not by who sends what to whom."""
    scenario = small(
        world_size=M, epochs=1, workload__exchange="partial_local_shuffle:exchange_fraction=0.25",
        workload__dataset__sample_size={"mean": "100 kB", "std": "40 kB"},
    )  # fmt: skip
    table = sizes(scenario, progress=False).tables["ranks"]
    nbytes = sample_nbytes(scenario)
    (plan,) = plan_epochs(scenario, nbytes)
    before = np.empty(len(nbytes), int)
    before[plan.shards.order] = np.repeat(np.arange(M), plan.shards.sizes)
    after = plan.exchange.apply(before)
    moved = before != after
    for rank, row in table.iterrows():
        assert row["held_nbytes"] == pytest.approx(nbytes[before == rank].sum())
        assert row["sent_nbytes"] == pytest.approx(nbytes[moved & (before == rank)].sum())
        assert row["received_nbytes"] == pytest.approx(nbytes[moved & (after == rank)].sum())
    assert not np.allclose(table["sent_nbytes"], table["received_nbytes"])


def test_what_the_page_cache_holds_is_read_from_memory_from_the_second_epoch_on():
    scenario = small(
        **EQUAL, workload__exchange="local_shuffle", cluster__memory__page_cache="1 GB"
    )
    for epoch, source in ((1, "read_nbytes"), (2, "cached_nbytes")):
        table = sizes(scenario, epoch=epoch, progress=False).tables["ranks"]
        other = {"read_nbytes", "cached_nbytes"} - {source}
        assert (table[source] == N // M * NBYTES).all()
        assert (table[[*other]] == 0).all(axis=None)


def test_quantiles_are_those_of_the_ranks():
    result = ranks("partial_local_shuffle:exchange_fraction=0.25")
    table, found = result.tables["ranks"], result.table("quantiles").set_index("quantity")
    row = found.loc["sent to other ranks"]
    assert row["total_nbytes"] == table["sent_nbytes"].sum()
    assert row["median"] == table["sent_nbytes"].median()
    assert (row["least"], row["most"]) == (table["sent_nbytes"].min(), table["sent_nbytes"].max())
    mean = table["sent_nbytes"].mean()
    assert row["uneven"] == pytest.approx(table["sent_nbytes"].max() / mean - 1)


def test_samples_of_unequal_size_are_all_there():
    scenario = small(world_size=M, workload__exchange="local_shuffle", epochs=1)
    table = sizes(scenario, progress=False).tables["ranks"]
    drawn = scenario.workload.dataset.draw_nbytes(scenario.rng("sample_size"))
    assert table["held_nbytes"].sum() == pytest.approx(drawn.sum(), rel=1e-12)
    assert isinstance(table, pd.DataFrame)


def test_another_epoch_can_be_asked_for_and_one_that_is_not_there_cannot():
    scenario = small(**EQUAL, workload__exchange="partial_local_shuffle:exchange_fraction=0.25")
    first, last = (sizes(scenario, epoch=e, progress=False).tables["ranks"] for e in (1, 2))
    assert not first["sent_nbytes"].equals(last["sent_nbytes"])
    with pytest.raises(ValueError, match="epoch: must be at most 2") as refused:
        sizes(scenario, epoch=3)
    assert "--" not in str(refused.value).partition("Add")[0]
    assert refused.value.source == "simshuffle.sizes"
