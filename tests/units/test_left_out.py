"""Values that need not be known: what they are when they are left out, and that they follow what
they depend on."""

import numpy as np
import pytest

from simshuffle.job.derived_values import derive_values
from simshuffle.job.scenario.host_work import host_work, payload_nbytes
from simshuffle.job.scenario.model import StepTimes
from simshuffle.job.scenario.scenario import from_dict, load_scenario
from simshuffle.job.scenario.workload import SampleSize
from tests.small import small

DATASET = {"name": "mine", "num_samples": 1000, "sample_size": {"mean": "110 kB"}}
MODEL = {
    "name": "mine",
    "gradient_size": "4 MB",
    "accelerators": {"v100-sxm2-16gb": {"forward": "110 ms / 64"}},
}


def without(section, *keys):
    """Quickstart whose record at ``section`` lacks some keys."""
    plain = load_scenario("quickstart", {"sweep": {}}).to_dict()
    record = plain
    for step in section.split("."):
        record = record[step]
    for key in keys:
        del record[key]
    record.pop("source", None)
    return from_dict(plain, "test")


def test_photographs_are_those_of_the_catalog():
    mine = small(workload__dataset=DATASET).workload.dataset
    known = load_scenario("quickstart", {"workload.dataset": "imagenet1k"}).workload.dataset
    assert mine.stored == known.stored == known.sample_size
    assert mine.decoded_nbytes == pytest.approx(known.decoded_nbytes, rel=1e-12)
    assert mine.decode_seconds == pytest.approx(known.decode_seconds, rel=1e-12)
    assert mine.encode_seconds == pytest.approx(known.encode_seconds, rel=1e-12)


def test_arrays_are_copied():
    raw = {**DATASET, "format": "raw", "sample_size": {"mean": "12.9 MB"}}
    dataset = small(workload__dataset=raw).workload.dataset
    assert dataset.stored == SampleSize.model_construct(mean=12.9e6, std=0.0)
    assert dataset.decoded_nbytes == 12.9e6
    assert dataset.decode_seconds == dataset.encode_seconds == pytest.approx(1e-3, rel=1e-12)


def test_what_is_said_is_taken():
    said = {
        **DATASET,
        "format": "raw",
        "sample_size": {"mean": "110 kB", "std": "7 kB"},
        "decoded_size": {"mean": "1 MB"},
        "decode": "3 ms",
        "encode": "0 s",
    }
    scenario = small(workload__dataset=said)
    dataset = scenario.workload.dataset
    assert (dataset.stored.spread, dataset.decoded_nbytes) == (7e3, 1e6)
    assert (dataset.decode_seconds, dataset.encode_seconds) == (3e-3, 0.0)
    assert "sample" not in derive_values(scenario)


def test_what_is_left_out_follows_the_size_also_in_a_sweep():
    runs = small(workload__dataset=DATASET).combinations(
        {"workload.dataset.sample_size.mean": ["110 kB", "220 kB"]}
    )
    one, two = (run.workload.dataset for run in runs.values())
    assert two.decode_seconds == pytest.approx(2 * one.decode_seconds)
    assert two.stored.spread == pytest.approx(2 * one.stored.spread)


def test_the_simulator_uses_what_follows():
    scenario = small(
        workload__dataset=DATASET,
        workload__exchange="partial_local_shuffle:exchange_fraction=0.1,schedule=authors",
    )
    dataset, schedule = scenario.workload.dataset, scenario.workload.exchange.exchange_schedule
    work = host_work(schedule, dataset)
    assert (work.decode, work.write) == (dataset.decode_seconds, dataset.encode_seconds)
    assert payload_nbytes(schedule, dataset) == dataset.decoded_nbytes
    assert derive_values(scenario)["sample"].startswith(
        "100 kB of standard deviation, 562.6 kB decoded, decoded in 1 ms, encoded in 460 us: as"
    )


def test_the_sizes_that_are_drawn_have_the_default_spread():
    drawn = SampleSize.model_construct(mean=110e3, std=None).draw(np.random.default_rng(1), 200_000)
    assert drawn.std() == pytest.approx(100e3, rel=0.03)


def test_a_backward_pass_is_two_forward_passes():
    times = StepTimes(forward="110 ms / 64")
    assert (times.forward, times.backward_seconds, times.update) == (0.11 / 64, 0.22 / 64, 0.0)
    assert StepTimes(forward="1 ms", backward="5 ms").backward_seconds == 5e-3


def test_a_model_needs_a_name_its_gradients_and_one_time():
    scenario = small(workload__model=MODEL)
    model = scenario.workload.model
    assert (model.num_parameters, model.input_size) == (None, 3 * 224 * 224 * 4)
    assert model.source == {"input_size": "default: a crop of 3 x 224 x 224 FP32 values x 4 B"}
    assert from_dict(scenario.to_dict(), "again") == scenario


@pytest.mark.parametrize(
    ("section", "keys", "expected"),
    [
        ("cluster.ssd", ["latency"], {"latency": 85e-6}),
        (
            "cluster.parallel_file_system",
            ["latency", "link_bandwidth", "link_latency", "links_per_switch"],
            {
                "latency": 1e-3,
                "link_bandwidth": 10e12,
                "link_latency": 26e-9,
                "links_per_switch": 1,
            },
        ),
        ("cluster.memory", ["page_cache"], {"cache_nbytes": 0.75 * 384 * 2**30}),
        (
            "cluster.message_passing",
            ["latency", "overhead", "copy_bandwidth", "copy_limit", "eager_limit"],
            {"latency": 1.3e-6, "overhead": 0.5e-6, "copy_bandwidth": 4.1e9},
        ),
    ],
)
def test_a_machine_has_sourced_defaults(section, keys, expected):
    scenario = without(section, *keys)
    record = scenario
    for step in section.split("."):
        record = getattr(record, step)
    assert {key: getattr(record, key) for key in expected} == expected
    assert record.source == record.default_sources or section == "cluster.memory"
    assert all(text.startswith("default: ") for text in record.default_sources.values())
    assert from_dict(scenario.to_dict(), "again") == scenario


def test_the_page_cache_follows_the_memory():
    half = without("cluster.memory", "page_cache").with_values({"cluster.memory.capacity": "8 GB"})
    assert half.cluster.memory.cache_nbytes == 6e9
    assert half.cluster.memory.repeat_hits(6e9) == 1.0
    assert half.cluster.memory.repeat_hits(6.1e9) < 1.0
