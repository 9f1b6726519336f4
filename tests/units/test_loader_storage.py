"""What nodes keep of what their loaders fetch, wherever storage is shown."""

from typing import Any

import pytest

from simshuffle.api import run
from simshuffle.job.plan.holding import held_in, max_held_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.verdict import verdict
from simshuffle.studies.simulation.text import list_notes
from simshuffle.workload.exchange import LoaderShuffle
from tests.examples import loader_shuffle
from tests.trained import time_to_accuracy
from tests.units.test_tta import EPOCHS, described, of_scale, record, study


def mosaicml(algorithm: str = "py1e", **values: Any) -> LoaderShuffle:
    """Each node keeps its shards, 10 of 40 of 400 kB."""
    order = {"kind": "mosaicml_streaming", "shuffle_algo": algorithm}
    return LoaderShuffle.model_validate(
        {"kind": "loader_shuffle", "order": order, "samples_per_shard": 4, **values}
    )


def sampler(**values: Any) -> LoaderShuffle:
    """Each rank reads any sample of 100 kB, of 160."""
    return loader_shuffle("distributed_sampler", **values)


def on_nodes(exchange: Any, **values: Any) -> Scenario:
    """On 4 nodes of 2 ranks."""
    given = exchange.model_dump(mode="json", exclude_none=True)
    return of_scale(workload__exchange=given, cluster__host__gpus=2, epochs=EPOCHS, **values)


@pytest.mark.parametrize(
    ("exchange", "nbytes"),
    [
        (mosaicml(), 4e6),
        (mosaicml(cache_limit="3 MB"), 3e6),
        (sampler(), 16e6),
        (sampler(cache_limit="3 MB"), 3e6),
        (sampler(cache_limit="0 B"), 100e3),  # a sample at a time
    ],
)
def test_the_estimate_is_what_fits_of_what_a_node_may_fetch(exchange, nbytes):
    scenario = on_nodes(exchange)
    said = verdict(scenario, "a")
    assert max_held_nbytes(scenario) == said["storage_nbytes"] == nbytes
    assert said["storage_on"] == ("memory" if exchange.cache_limit == 0 else "SSD")


def test_a_result_says_what_a_node_held():
    found = run(on_nodes(sampler(cache_in="memory")))
    held = found.tables["sources"]["nbytes_cached"]
    about = found.meta["runs"]["distributed_sampler-pfs @8"]
    assert 4e6 < held.max() < 16e6
    assert about["storage_per_host_nbytes"] == held.max()
    assert about["staged_to"] == held_in(on_nodes(sampler(cache_in="memory"))) == "memory"
    assert "MB in memory" in "".join(list_notes(found))


def test_time_to_accuracy_tells_orders_apart_and_has_their_storage(tmp_path):
    """Two algorithms of a library and a sampler: each a setting, each simulated with its own order.
    A node of the sampler comes to hold more in each epoch than in the one before."""
    loaders = [mosaicml(), mosaicml("py1s"), sampler()]
    runs = {f"run {place}": record("local", each, 0) for place, each in enumerate(loaders)}
    named = zip(runs, loaders, strict=True)
    described_as = {name: described(each.short_name, None, 0) for name, each in named}
    folder = study(tmp_path / "made", dict(runs), described_as)
    scenario = on_nodes(mosaicml(samples_per_shard=8))
    settings = time_to_accuracy(folder, scenario).tables["settings"].set_index("setting")
    assert list(settings.index) == ["distributed_sampler", "mosaicml py1e", "mosaicml py1s"]
    assert (settings["message"] == "").all()
    storage = settings["storage_nbytes"]
    assert storage["mosaicml py1e"] == 4e6
    held = run(on_nodes(sampler())).tables["sources"]["nbytes_cached"]
    assert storage["distributed_sampler"] == held.max() > held[0]
