"""An epoch that is simulated alone is as if all epochs before it had been simulated."""

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.job.sim.simulate import simulate
from tests.small import small

EXCHANGE = "exchange_fraction=0.3"
CASES = {
    "partial, page cache of a few samples": {
        "workload__exchange": f"partial_local_shuffle:{EXCHANGE}",
        "cluster__memory__page_cache": "3 MB",
    },
    "no barriers": {
        "workload__exchange": f"partial_local_shuffle:{EXCHANGE},schedule.barriers=none",
        "workload__jitter__compute": 0.2,
    },
    "importance measured": {
        "workload__exchange": f"importance_exchange:{EXCHANGE}",
        "cluster__memory__page_cache": "3 MB",
    },
    "importance lagging": {"workload__exchange": f"importance_pair:{EXCHANGE},lagging=true"},
    "global": {"workload__exchange": "global_shuffle:source=pfs", "workload__jitter__read": 0.3},
    # reads of different sizes that meet on the cables of the file system, a few packets each
    "packets": {
        "workload__exchange": "global_shuffle:source=pfs",
        "workload__dataset__sample_size__std": "100 kB",
        "cluster__parallel_file_system__link_bandwidth": "20 MB/s",
        "network": {"kind": "packet", "mtu": "100 kB", "port_buffer": "1 MB"},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_a_whole_run(name):
    scenario = small(epochs=3, world_size=8, **CASES[name])
    whole, alone = simulate(scenario), simulate(scenario, first_epoch=3)
    assert (
        set(alone.phases["epoch"])
        == set(alone.links["epoch"])
        == set(alone.sources["epoch"])
        == {3}
    )
    before, now = (
        table[table["epoch"] == 3].reset_index(drop=True) for table in (whole.phases, alone.phases)
    )
    begin = whole.phases.loc[whole.phases["epoch"] == 2, "end_s"].max()
    assert begin > 0.1
    for column in ("start_s", "end_s"):
        assert now[column].to_numpy() == pytest.approx(before[column].to_numpy() - begin, abs=1e-9)
    assert now["nbytes"].equals(before["nbytes"])
    links = [table[table["epoch"] == 3].set_index("link") for table in (whole.links, alone.links)]
    assert links[1]["nbytes"].to_numpy() == pytest.approx(links[0]["nbytes"].to_numpy())
    assert links[1]["mean_utilisation"].to_numpy() == pytest.approx(
        links[0]["mean_utilisation"].to_numpy(), rel=1e-6
    )
    sources = [
        table[table["epoch"] == 3].select_dtypes("number").to_numpy()
        for table in (whole.sources, alone.sources)
    ]
    assert np.array_equal(*sources, equal_nan=True)


def test_the_cold_epoch_is_another_one():
    scenario = small(epochs=2, world_size=8, cluster__memory__page_cache="1 GB")
    alone, cold = (
        simulate(scenario, first_epoch=2),
        simulate(scenario.model_copy(update={"epochs": 1})),
    )
    read = ["nbytes_ssd", "nbytes_memory"]
    assert cold.sources[read].to_numpy() == pytest.approx(np.array([[80e6, 0.0]]))
    assert alone.sources[read].to_numpy() == pytest.approx(np.array([[0.0, 80e6]]))
    assert alone.phases["end_s"].max() < cold.phases["end_s"].max() - 1e-3


def test_progress_counts_what_is_simulated():
    told = []
    simulate(small(epochs=3), progress=told.append, first_epoch=3)
    assert told[-1] == pytest.approx(1.0)
    assert told[0] == pytest.approx(1 / len(told))


def test_loaders_that_read_ahead_into_the_epoch_are_refused():
    scenario = small(
        epochs=2, workload__exchange="local_shuffle", workload__loader__across_epochs=True
    )
    with pytest.raises(ScenarioError, match=r"across_epochs.*epoch 2 is simulated alone"):
        simulate(scenario, first_epoch=2)
