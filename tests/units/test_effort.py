"""What estimates of simulations claim, on the shipped scenarios: against what benchmarks measured
(docs/data/effort.csv), and against iterations that are counted."""

import csv
import importlib
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.job.plan import effort as effort_module
from simshuffle.job.plan.effort import (
    AllreduceEffort,
    Effort,
    check_size,
    compute_seconds,
    effort,
    expected_iterations,
    expected_packets,
    first_window,
    served_window,
    waits_for_server,
)
from simshuffle.job.plan.jobs import separate_jobs
from simshuffle.job.scenario.scenario import all_runs, load_scenarios
from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim.simulate import simulate
from simshuffle.study.cell_times import COVERED_SHARE, FACTOR
from tests.small import small

ROOT = Path(__file__).parent.parent.parent
with (ROOT / "docs" / "data" / "effort.csv").open(newline="", encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


@cache
def runs_of(name):
    return separate_jobs(all_runs(load_scenarios(ROOT / "scenarios" / f"{name}.yaml")))


@cache
def efforts():
    return [effort(runs_of(row["scenario"])[row["run"]]) for row in ROWS]


def off(ratios):
    return np.maximum(ratios, 1.0 / ratios)


def test_all_shipped_scenarios_are_measured_but_for_one_that_takes_long():
    shipped = {
        str(path.relative_to(ROOT / "scenarios").with_suffix(""))
        for path in (ROOT / "scenarios").rglob("*.yaml")
    }
    assert shipped - {row["scenario"] for row in ROWS} == {"paper/oracle-gpt"}


def test_nine_of_ten_estimates_are_right_within_a_factor_of_two():
    """With the constants as they are, and with one factor for the machine, as it is calibrated; all
    within the factor that is claimed."""
    measured = np.array([float(row["seconds"]) for row in ROWS])
    ratios = measured / np.array([found.seconds for found in efforts()])
    for factor in (1.0, statistics.median(ratios)):
        assert (off(ratios / factor) <= 2.0).mean() >= COVERED_SHARE
    assert off(ratios).max() < FACTOR


def test_memory_is_estimated_within_a_factor_of_two():
    """Of rows measured with it: the largest resident set of a process that does the run alone."""
    rows = [row for row in zip(ROWS, efforts(), strict=True) if row[0]["peak_mb"]]
    assert len(rows) > 50
    assert off(np.array([float(row["peak_mb"]) * 1e6 / of.nbytes for row, of in rows])).max() < 2


def test_seconds_and_bytes_are_sums_by_hand():
    # an allreduce: 0.42 ms of 1,000 flows, 1.8 ms of 10,000 that wait; 10 are posted in 65 us each,
    # 3 laid out at twice that; 100 passes are slowed down by 2 us
    allreduces = AllreduceEffort(10, 3, 1000, 10_000, 100)
    assert allreduces.seconds == pytest.approx(10 * 2.285e-3 + 3 * 4.44e-3 + 200e-6)
    assert allreduces.nbytes == 800e3 + 320e3 + 3 * (140e3 + 80e3)
    of = Effort(1e5, 2e4, 1e6, 4, 1000, 1e6, allreduces, 1e4, hosts=500)
    sent, ranks = 4.8e-6 * 2e4, 31e-3
    rest = 0.1 + 0.77 + 0.25 + 0.52 + 0.0185 + 0.6 + allreduces.seconds
    assert of.seconds == pytest.approx(rest + sent + ranks)
    assert replace(of, exact=False).seconds == pytest.approx(5.6 * of.seconds)
    crowded = replace(of, ranks=4096).seconds  # twice those that fit the caches
    assert crowded == pytest.approx(rest + 2**0.45 * (sent + 4.096 * ranks))
    assert of.nbytes == 265e6 + 50e6 + 200 * 5e3 + 27e6 + 6e6 + 2.25e6 + allreduces.nbytes


def test_nine_of_ten_runs_simulate_the_iterations_that_are_expected():
    counted = np.array([int(row["iterations"]) for row in ROWS])
    expected = np.array([found.iterations for found in efforts()])
    assert np.quantile(off(counted / expected), COVERED_SHARE) < 1.5


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("quickstart", "partial-0.1 streamlined @64"),
        ("gpt-tokens", "partial-0.1 streamlined @256 attention=full"),
        ("paper/exchange-rate", "local @512"),
    ],
)
def test_the_iterations_are_counted_as_they_are_simulated(monkeypatch, name, run):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    counted = importlib.import_module("effort_shipped").counted
    (row,) = (row for row in ROWS if (row["scenario"], row["run"]) == (name, run))
    assert counted(lambda: simulate(runs_of(name)[run])) == int(row["iterations"])


def test_what_is_expected_of_windows():
    """An exchange as long as computing makes iterations differ: windows in vain, and then all."""
    sent = runs_of("paper/exchange-rate")["partial-0.7 authors @512"]
    assert expected_iterations(sent) == 1.5 * 78
    local = sent.with_values({"workload.exchange": "local_shuffle"})
    assert expected_iterations(local) == 12
    whole = local.with_values({"time_tolerance": 0})
    assert expected_iterations(whole) == 78
    across = local.with_values({"workload.loader.across_epochs": True})
    assert expected_iterations(across) == 78


# -------------------------------------------------------------------------- by hand, of tests.small

# 8 ranks on 8 of 16 hosts, 100 samples each in 10 batches: 27.25 ms of passes, 0.57 ms of update
COMPUTE = 10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3
TIMES = {"v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms"}}
LAYERS = {"parameters": [40_000_000, 30_000_000, 20_000_000, 10_000_000], "backward": [8, 6, 4, 2]}
"""Ready after 0.1, 0.3, 0.6 and 1 of the backward pass: 40, 80, 120 and 160 MB."""
QUARTERS = {
    "name": "tokens",
    "num_samples": 800,
    "tokens": {
        "sequence_length": 1000,
        "document_length": {"mean": 250, "std": 0},
        "attention": "documents",
        "attention_share": 0.5,
    },
}
"""Sequences of four documents: a quarter of all pairs of tokens, so 5/8 of the computing."""


def partial(fraction, **schedule):
    kind = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
    return kind | ({"schedule": schedule} if schedule else {})


def long_run(iterations, **values):
    """A run of so many iterations, of which windows are simulated."""
    return small(
        **{"workload__dataset__num_samples": 80 * iterations, "time_tolerance": "5 %", **values}
    )


def model(**times):
    return {
        "name": "four layers",
        "gradient_size": "400 MB",
        "layers": LAYERS,
        "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms", **times}},
    }


def test_a_rank_computes_for_its_passes_what_is_fixed_and_its_update():
    scenario = small(workload__model=model(update="5 ms", fixed="3 ms"))
    assert compute_seconds(scenario) == pytest.approx(10 * 3e-3 + 3e-3 + 5e-3)
    of_tokens = small(workload__model=model(update="5 ms"), workload__dataset=QUARTERS)
    assert compute_seconds(of_tokens) == pytest.approx(0.625 * 10 * 3e-3 + 5e-3)


@pytest.mark.parametrize(
    ("exchange", "loader", "window"),
    [
        (partial(0.0), (4, 8), 12),
        (partial(0.5), (4, 8), 12),  # each iteration sends: 2.5, made whole
        (partial(0.013), (4, 8), 20),  # 0.13 of a sample in each: 19.2
        ("importance_exchange:exchange_fraction=0", (2, 4), 12),
        # two transients and two parts of four batches each, and two more
        ("importance_exchange:exchange_fraction=0", (4, 8), 18),
        ("importance_exchange:exchange_fraction=0", (8, 4), 18),
    ],
)
def test_the_first_window_is_long_enough_for_all_that_happens(exchange, loader, window):
    workers, prefetch = loader
    scenario = small(
        workload__exchange=exchange,
        workload__loader={"workers": workers, "prefetch": prefetch},
    )
    assert first_window(scenario) == window


def test_a_window_of_a_busy_server_ends_at_the_turn_of_the_epoch():
    """8 to fill the loaders, two turns of 4 workers, 8 to empty them; then as many more as leave
    whole turns of the epoch. Never fewer than two iterations to begin with, and six between."""
    assert served_window(Loader(workers=4, prefetch=8), 1002) == 24 + 2
    assert served_window(Loader(workers=4, prefetch=8), 1001, 30) == 30 + 3
    assert served_window(Loader(workers=1, prefetch=1), 1001) == 2 + 6 + 1
    assert served_window(Loader(workers=2, prefetch=5), 1001) == 5 + 6 + 5 + 1
    # 1,000 iterations of two workers, four ahead: 4, 6 and 4
    busy = {
        "workload__exchange": "global_shuffle",
        "cluster__parallel_file_system__open_rate": "500 /s",
    }
    assert first_window(long_run(1000, **busy)) == 14
    assert first_window(long_run(1001, **busy)) == 15
    measured = busy | {"workload__exchange": "importance_exchange:exchange_fraction=0"}
    assert first_window(long_run(1001, **measured)) == 12


STORE = {"latency": "0 s", "connection_bandwidth": "1 TB/s", "request_rate": "1000 k/s"}


@pytest.mark.parametrize(
    ("source", "key", "unit", "needed"),
    [
        # twice the compute: 80 samples of 100 kB, each opened, or asked for
        ("pfs", "parallel_file_system__open_rate", "/s", 80 / (2 * COMPUTE)),
        ("pfs", "parallel_file_system__read_bandwidth", "B/s", 8e6 / (2 * COMPUTE)),
        ("object_store", "object_store__request_rate", "/s", 80 / (2 * COMPUTE)),
        ("object_store", "object_store__bandwidth", "B/s", 8e6 / (2 * COMPUTE)),
    ],
)
def test_an_epoch_waits_for_a_server_that_takes_twice_as_long_as_computing(
    source, key, unit, needed
):
    def waits(factor):
        return waits_for_server(
            small(
                workload__exchange=f"global_shuffle:source={source}",
                **{f"cluster__object_store__{name}": value for name, value in STORE.items()}
                | {f"cluster__{key}": f"{factor * needed} {unit}"},
            )
        )

    assert waits(0.999)
    assert not waits(1.001)


def test_packets_by_hand():
    """In packets of 4 kB, of 8 ranks on 4 hosts in two epochs of 10 iterations, and three of
    reading. Of each host one rank sends 14 of 8 parts of the gradient on the ring to another host;
    of the samples that travel, 25 packets each, a quarter stay on their host; the file system sends
    what is not in memory: a host has read a quarter of the set in each epoch before."""
    hosts = {"cluster__host__gpus": 2}
    gradients = 4 * np.ceil(14 / 8 * 102228128 / 4e3) * 10
    sending = small(**hosts, epochs=2, workload__exchange=partial(0.1))
    assert expected_packets(sending, 4e3) == pytest.approx(
        {"gradients": 2 * gradients, "exchange": 8 * 20 * 0.75 * 25, "reads": 0.0}, rel=1e-4
    )
    # 101.25 samples of a rank, 10.125 of them sent: 10 in the first epochs, rounded up in the fifth
    more = small(**hosts, epochs=4, workload__exchange=partial(0.1, payload="decoded"))
    more = more.with_values({"workload.dataset.num_samples": 810})
    assert expected_packets(more, 4e3)["exchange"] == 8 * 40 * 0.75 * 125
    reading = small(
        **hosts,
        epochs=3,
        workload__exchange="global_shuffle",
        cluster__memory__page_cache="1 GB",
    )
    assert expected_packets(reading, 4e3) == pytest.approx(
        {"gradients": 3 * gradients, "exchange": 0.0, "reads": (1 + 0.75 + 0.75**2) * 8e7 / 4e3},
        rel=1e-4,
    )
    assert expected_packets(small(world_size=1), 4e3)["gradients"] == 0.0


def test_a_run_may_have_as_many_packets_as_the_limit(monkeypatch):
    scenario = small(network={"kind": "packet"})
    total = sum(expected_packets(scenario, scenario.network.mtu).values())
    monkeypatch.setattr(effort_module, "MOST_PACKETS", total)
    check_size(scenario)
    monkeypatch.setattr(effort_module, "MOST_PACKETS", total - 1)
    with pytest.raises(InputError, match=r"network\.kind: must have at most"):
        check_size(scenario)


def test_the_effort_of_a_run_of_all_its_iterations():
    """Of 8 ranks: 10 iterations in each of 3 epochs, which send 10 samples of each rank; a ring of
    8 flows that wait for nothing."""
    found = effort(small(epochs=3, workload__exchange=partial(0.1)))
    assert (found.iterations, found.samples, found.stored) == pytest.approx((240, 240, 800))
    assert (found.epochs, found.ranks, found.hosts) == (3, 8, 16)
    assert (found.packets, found.waiting, found.exact) == (0.0, 0.0, True)
    assert found.allreduces == AllreduceEffort(30, 1, 8, 0, 0.0)
    assert found.kind == "partial_local_shuffle, fluid"


def test_the_effort_of_a_run_of_windows():
    """12 of 1,000 iterations; two passes where importance is measured, and all of them wait where
    the file system is slow."""
    found = effort(long_run(1000, epochs=3, workload__exchange=partial(0.1)))
    assert (found.iterations, found.stored) == pytest.approx((8 * 12 * 3, 0.012 * 80_000))
    assert found.samples == pytest.approx(0.1 * 960 * 3)
    assert found.allreduces.count == 36
    assert found.kind.endswith(", windows")
    assert effort(small()).samples == 0.0
    measuring = "importance_exchange:exchange_fraction=0"
    assert effort(small(workload__exchange=measuring)).iterations == 2 * 80
    slow = effort(
        small(workload__exchange="global_shuffle", cluster__parallel_file_system__open_rate="1 k/s")
    )
    assert slow.waiting == slow.iterations == 80
    tolerant = small(network={"kind": "fluid", "tolerance": 0.01})
    assert not effort(tolerant).exact
    packets = small(network={"kind": "packet"})
    assert effort(packets).packets == sum(expected_packets(packets, packets.network.mtu).values())


@pytest.mark.parametrize(
    ("overlap", "count", "sizes"),
    [
        # the first bucket is full with 40 MB, the second with 200, the last one has the rest
        ({"kind": "ddp", "bucket": "100 MB", "first_bucket": "20 MB"}, 3, 3),
        # 24 ms of 20 ms and hooks take 32 at three quarters of the speed: layers are ready after
        # 3.2, 9.6, 19.2 and 32 ms, in a cycle of 8 ms each; any of 48 messages may differ
        ({"kind": "horovod", "cycle": "8 ms", "fusion": "1 GB"}, 4, 48),
    ],
)
def test_allreduces_beside_the_backward_pass(overlap, count, sizes):
    """Of 12 iterations of two ranks."""
    scenario = small(
        world_size=2,
        epochs=3,
        workload__dataset__num_samples=80,
        workload__model=model(),
        workload__allreduce__overlap=overlap | {"slowdown": 0.25, "hooks": "4 ms"},
    )
    found = effort(scenario).allreduces
    assert (found.count, found.sizes, found.slowed) == (12 * count, sizes, 24)
    if count == 4:  # 20 epochs have 320, of which 64 may differ
        assert effort(scenario.with_values({"epochs": 20})).allreduces.sizes == 64


def test_one_rank_sums_nothing():
    assert effort(small(world_size=1)).allreduces == AllreduceEffort()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"iterations": 16}, 16),  # 12 are three quarters of them
        ({"iterations": 17}, 12),
        ({"workload__checkpoint": {"every": 100}}, 1000),
        ({"time_tolerance": 0}, 1000),
        # an exchange takes 5 % of the compute where a rank sends 1.4 samples of 1 ms an iteration
        ({"workload__exchange": partial(0.12, read="1 ms")}, 12),
        ({"workload__exchange": partial(0.16, read="1 ms"), "time_tolerance": "2 %"}, 37.5),
        ({"workload__exchange": partial(0.16, read="1 ms"), "time_tolerance": "1 %"}, 150),
        ({"workload__exchange": partial(0.16, read="1 ms"), "time_tolerance": "5 %"}, 12),
        (
            {"workload__exchange": partial(0.16, read="1 ms"), "time_tolerance": "1 %"}
            | {"iterations": 40},
            60,  # windows in vain, and then all
        ),
        # reading a batch takes half of the compute at 72 MB/s; in the first of 4 epochs in vain
        ({"cluster__ssd__read_bandwidth": "73 MB/s", "epochs": 4}, 12),
        ({"cluster__ssd__read_bandwidth": "71 MB/s", "epochs": 4}, (1500 + 3 * 12) / 4),
    ],
)
def test_iterations_that_are_expected_by_hand(values, expected):
    """Of epochs of 1,000 iterations."""
    values = {"iterations": 1000, **values}
    assert expected_iterations(long_run(**values)) == pytest.approx(expected)
