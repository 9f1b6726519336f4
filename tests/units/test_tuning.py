"""The verb loader with a scenario: its shape, and how many workers its steps need."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.shape import (
    DataSetShape,
    facts_of,
    fill_from_scenario,
    read_dataset,
    shape_of,
)
from simshuffle.studies.loader.tables import DECODING as DECODES
from simshuffle.studies.loader.tables import LOOP, MAX_LOSS, READING, UNEVEN, choose_settings
from simshuffle.studies.loader.tuning import _find_bottleneck, list_settings
from simshuffle.study.registry import read_folder
from tests.small import small

exactly = pytest.approx
# one rank that decodes 10 samples in 100 ms, beside which nothing else takes time; a step of 27.8
# ms wants 100 / 27.8 = 3.6 workers
DECODING = {
    "world_size": 1,
    "workload__dataset__num_samples": 800,
    "workload__dataset__decode": "10 ms",
    "cluster__ssd__read_bandwidth": "3 TB/s",
    "cluster__ssd__latency": "0 s",
    "cluster__ssd__iops": "4 G/s",
    "workload__model__input_size": "1 kB",
}
STEP = 10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3


@pytest.fixture
def decoding():
    return simshuffle.loader(small(**DECODING), tune=True, progress=False)


def test_throughput_over_workers_is_that_of_the_law(decoding):
    settings = decoding.tables["settings"].set_index(["workers", "prefetch"])
    assert sorted(set(settings.index.get_level_values(0))) == [1, 2, 4, 5]
    for workers in (1, 2, 4, 5):
        found = settings.loc[(workers, 2 * workers)]
        assert found["samples_per_s"] == exactly(10 / max(STEP, 0.1 / workers), rel=1e-4)
        assert found["needed_per_s"] == exactly(10 / STEP)
        assert found["binds"] == ("loop" if workers >= 4 else "worker decodes")
        assert found["first_s"] == exactly(0.1, rel=1e-4)


def test_slow_workers_stall_once_in_as_many_steps(decoding):
    settings = decoding.tables["settings"].set_index(["workers", "prefetch"])
    assert settings.loc[(2, 4), "stall_every"] == exactly(2)
    assert settings.loc[(2, 4), "waiting"] == exactly((0.05 - STEP) / 0.05, rel=1e-3)
    assert settings.loc[(5, 10), "waiting"] == exactly(0.0, abs=1e-9)
    assert settings.loc[(2, 4), "stall_s"] == exactly(0.1 - 2 * STEP, rel=1e-3)
    assert settings["stall_every"].isna().sum() == 6  # 4 and 5 workers


def test_memory_is_that_of_all_batches_that_are_held(decoding):
    settings = decoding.tables["settings"].set_index(["workers", "prefetch"])
    # 8 batches ahead and the one in use as inputs, 4 as files
    held = 9 * 10 * 1e3 + 4 * 10 * 100e3
    assert settings.loc[(4, 8), "memory_nbytes"] == exactly(held)


def test_the_answer_is_the_smallest_setting_that_stalls_nothing(decoding, tmp_path, capsys):
    answer = decoding.derived["answers"].iloc[0]
    assert (answer["workers"], answer["prefetch"], answer["binds"]) == (4, 4, "loop")
    said = decoding.verdict()
    assert any("4 workers, 4 batches ahead: nothing stalls" in line for line in said)
    assert any("as the scenario has it, 2 workers, 4 batches ahead" in line for line in said)
    assert "num_workers=4, prefetch_factor=1" in str(decoding)


def test_a_thousandth_less_is_as_good_and_threads_count_first(decoding):
    table = decoding.tables["settings"].head(4).assign(samples_per_s=[998.9, 999.0, 1000.0, 1000.0])
    table = table.assign(workers=[1, 2, 1, 1], prefetch=[1, 1, 9, 8], threads=[1, 1, 2, 2])
    chosen = choose_settings(table)[["threads", "workers", "prefetch"]]
    assert chosen.to_numpy().tolist() == [[1, 2, 1]]
    chosen = choose_settings(table.assign(threads=1))[["threads", "workers", "prefetch"]]
    assert chosen.to_numpy().tolist() == [[1, 1, 8]]


def test_where_a_shared_resource_binds_no_setting_is_enough():
    scenario = small(
        workload__exchange="global_shuffle", cluster__parallel_file_system__open_rate="100 /s"
    )
    answer = simshuffle.loader(scenario, tune=True, progress=False).derived["answers"].iloc[0]
    assert answer["binds"] == "file opens"
    assert answer["samples_per_s"] == exactly(100, rel=1e-3)


def test_batches_that_vary_want_a_longer_window():
    """3.6 workers in the mean: four do, but with one batch ahead each, late ones are waited for."""
    varied = {**DECODING, "workload__dataset__sample_size": {"mean": "100 kB", "std": "100 kB"}}
    settings = simshuffle.loader(small(**varied), tune=True, progress=False).tables["settings"]
    four = settings[settings["workers"] == 4].set_index("prefetch")
    assert four.loc[4, "binds"] == "uneven batches"
    assert four.loc[16, "samples_per_s"] > 1.02 * four.loc[4, "samples_per_s"]


def test_shards_of_eight_batches_stall_four_workers_every_32_steps():
    """Each worker fetches a shard of 80 samples for eight batches of its own, all four at once: 2
    s for each, and a window of 8 steps of 28 ms hides none of it."""
    order = {
        "kind": "loader_shuffle",
        "order": {"kind": "webdataset", "buffer_size": 1, "shard_shuffle": 0},
        "samples_per_shard": 80,
        "cache_limit": "0 B",
    }
    scenario = small(
        world_size=1,
        workload__exchange=order,
        workload__dataset__num_samples=80 * 64,
        workload__loader={"workers": 4, "prefetch": 8},
        cluster__parallel_file_system__latency="2 s",
    )
    found = simshuffle.loader(scenario, tune=True, workers=4, prefetch_factor=[2], progress=False)
    row = found.tables["settings"].iloc[0]
    assert row["own"]
    assert row["stall_every"] == exactly(32)
    assert row["stall_s"] == exactly(2.0 - 8 * STEP, rel=0.1)


# ------------------------------------------------------------------------------------ the verb


def test_the_shape_of_orders_is_that_of_the_scenario(tmp_path, capsys):
    words = ["study", "loader", "quickstart", "--order", "own:shuffle=global", "--samples", "640"]
    assert main([*words, "--epochs", "2", "--json", "--out", str(tmp_path / "a")]) == 0
    json.loads(capsys.readouterr().out)
    says = read_folder(tmp_path / "a").meta["says"]
    assert (says["nodes"], says["ranks"], says["workers"], says["batch_size"]) == (16, 64, 4, 32)
    # and the result is done again without the scenario
    assert main(["results", "verify", str(tmp_path / "a")]) == 0


READ_BY = {"nodes": 3, "gpus": 2, "workers": 2, "batch_size": 5, "epochs": 2}


def test_what_texts_say_of_a_shape_by_hand():
    """60 samples in shards of 16: of the 59 others 4 share a batch, and 9 a rank."""
    shape = DataSetShape(
        samples=60, samples_per_shard=16, shard_nbytes=1600, cache_nbytes=None, **READ_BY
    )
    facts = facts_of(shape)
    assert (facts["shards"], facts["nbytes"], facts["ranks"]) == (4, 6000, 6)
    assert shape.data.samples.tolist() == [16, 16, 16, 12]
    assert shape.data.nbytes.tolist() == [1600, 1600, 1600, 1200]
    shares = [facts[name] for name in ("batch_companions", "rank_companions", "moves")]
    assert shares == exactly([4 / 59, 9 / 59, 2 / 3])
    assert (shape.rows, facts["classes"], facts["cache_nbytes"]) == (120, 10, None)
    # a sample alone has none; all samples may be in one shard, which is full
    alone = shape.model_copy(update={"samples": 1})
    assert facts_of(alone)["rank_companions"] == 0.0
    assert alone.data.nbytes.tolist() == [1600]
    full = shape.model_copy(update={"samples": 32})
    assert full.data.samples.tolist() == [16, 16]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # a shard each, up to 64 of them; nodes have room for 1.25 times 2 MB
        ({}, (1, 100_000, 2_500_000)),
        ({"samples_per_shard": 16}, (16, 1_600_000, 2_500_000)),
        ({"samples_per_shard": 100}, (100, 6_000_000, 2_500_000)),
        ({"shards": 7}, (9, 900_000, 2_500_000)),
        # 3 MB x 60 / 16 / 3 x 1.25
        ({"samples_per_shard": 16, "shard_size": "3 MB"}, (16, 3_000_000, 4_687_500)),
        ({"cache": "none"}, (1, 100_000, None)),
        ({"cache": "0"}, (1, 100_000, 0)),
        ({"cache": "5 MB"}, (1, 100_000, 5_000_000)),
    ],
)
def test_what_options_leave_out_of_a_shape_follows_from_the_others(values, expected):
    shape = shape_of(LoaderOptions(**READ_BY, **{"samples": 60, **values}))
    assert (shape.samples_per_shard, shape.shard_nbytes, shape.cache_nbytes) == expected
    assert (shape.samples, shape.classes) == (60, 10)


def test_a_shape_has_a_sample_of_each_rank_and_all_that_a_file_names():
    def sized(samples, named=0, **values):
        options = LoaderOptions(**{**READ_BY, **values}, samples=samples)
        return shape_of(options, named).samples

    assert (sized(6), sized(None), sized(None, 61), sized(60, 60)) == (6, 16_384, 61, 60)
    assert sized(2**20, epochs=2**8) == 2**20
    for values in ((5,), (59, 60)):
        with pytest.raises(InputError, match="--samples"):
            sized(*values)
    with pytest.raises(InputError, match="samples times epochs"):
        sized(2**20, epochs=2**8 + 1)
    with pytest.raises(InputError, match="cannot be combined"):
        sized(60, shards=4, samples_per_shard=15)
    assert shape_of(LoaderOptions(**READ_BY, samples=7, classes=9)).classes == 7
    known = shape_of(LoaderOptions(**READ_BY, dataset="imagenet50"))
    assert (known.samples, known.shard_nbytes) == (
        read_dataset("imagenet50")[0],
        round(read_dataset("imagenet50")[1] * known.samples_per_shard),
    )


def test_a_scenario_fills_what_options_leave_out():
    """800 samples of 100 kB: 13 in each of 62 shards, 80 in each of 10, or as many as asked for."""
    scenario = small(world_size=4, cluster__host__gpus=2)

    def filled(of=scenario, **values):
        options = fill_from_scenario(LoaderOptions(scenario=of, **values))
        assert options.scenario is None and options.set == {}
        return options

    plain = filled()
    assert (plain.nodes, plain.gpus, plain.workers, plain.batch_size) == (2, 2, 2, 10)
    assert (plain.samples, plain.shard_size, plain.samples_per_shard) == (800, "1300000 B", None)
    assert filled(shards=10).shard_size == "8000000 B"
    assert filled(samples_per_shard=16).shard_size == "1600000 B"
    assert filled(shard_size="1 MB").shard_size == "1 MB"
    assert (filled(nodes=1).nodes, filled(samples=70).samples) == (1, 70)
    named = filled(dataset="imagenet50")
    assert (named.samples, named.shard_size) == (None, None)

    order = "loader_shuffle:order=webdataset,order.buffer_size=4,samples_per_shard=10"
    scenario = small(world_size=4, cluster__host__gpus=2, workload__exchange=order)
    shuffled = filled(scenario)
    assert (shuffled.samples_per_shard, shuffled.shard_size) == (10, "1000000 B")
    assert (shuffled.cache, shuffled.order) == ("none", ("webdataset:buffer_size=4",))
    limited = small(world_size=4, workload__exchange=f"{order},cache_limit=3 MB")
    assert (filled(limited).cache, filled(limited).gpus) == ("3000000 B", 1)
    # shards or an order of one's own take the place of those of the scenario
    other = filled(scenario, shards=8, order=("own:shuffle=global",))
    assert (other.samples_per_shard, other.order) == (None, ("own:shuffle=global",))
    assert other.shard_size == "1000000 B"
    with pytest.raises(InputError, match="to fill all hosts"):
        filled(small(world_size=3, cluster__host__gpus=2))
    assert fill_from_scenario(plain) == plain
    with pytest.raises(InputError, match="needs a scenario"):
        fill_from_scenario(replace(plain, set={"epochs": 2}))


@pytest.mark.parametrize(
    ("wait", "workers", "resource", "read", "expected"),
    [
        (MAX_LOSS, 9.0, 9.0, 1.0, LOOP),
        (1.0, 1.0, 1.0, 1.0, UNEVEN),
        (1.0, 1.1, 1.1, 9.0, "PFS"),
        (1.0, 1.0, 1.1, 9.0, "PFS"),
        (1.0, 1.1, 1.0, 0.6, READING),
        (1.0, 1.1, 1.0, 0.5, DECODES),
    ],
)
def test_what_keeps_loops_from_being_faster(wait, workers, resource, read, expected):
    """Of a step of 1 s; four workers at once share what each of them takes."""
    demand = SimpleNamespace(step=1.0, binding=("PFS", resource), at_once=4, decode=0.5)
    demand.isolated_seconds, demand.read = 4 * workers, np.array([[read - 0.1, read + 0.1]])
    assert _find_bottleneck(demand, wait) == expected


def test_the_order_of_the_scenario_is_the_one_that_is_counted():
    order = "loader_shuffle:order=webdataset,order.buffer_size=4,samples_per_shard=10"
    scenario = small(workload__exchange=order)
    table = simshuffle.loader(scenario, progress=False).tables["loaders"]
    assert table["loader"].tolist() == ["webdataset:buffer_size=4"]
    assert table["first_nbytes"].item() == exactly(800 * 100e3)


def test_bytes_that_exceed_the_set_many_times_are_explained(here, capsys):
    words = ["--samples", "640", "--shards", "16", "--nodes", "4", "--cache", "0"]
    assert (
        main(["study", "loader", "--order", "mosaicml_streaming:shuffle_algo=naive", *words]) == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "Fetched in an epoch, in multiples of the data set: mosaicml_streaming" in out
    assert "fetches a whole shard for a few samples" in out
    assert main(["study", "loader", "--order", "own:shuffle=global", *words]) == 0
    assert "in multiples of the data set" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("useful", "workers"), [(1.0, [1, 2]), (4.0, [1, 2, 4, 5]), (5.0, [1, 2, 4, 5, 6])]
)
def test_workers_are_doubled_up_to_where_nothing_grows_and_one_beyond(monkeypatch, useful, workers):
    demand = SimpleNamespace(isolated_seconds=useful, step=1.0, binding=("decode", 0.5))
    monkeypatch.setattr("simshuffle.studies.loader.tuning.loader_demand", lambda _: demand)
    axes = {"workers": (), "threads": (), "factors": (2,)}
    found = list_settings(small(), axes)
    own = small().workload.loader.workers
    assert sorted({loader.workers for loader in found} | {own}) == sorted({*workers, own})
