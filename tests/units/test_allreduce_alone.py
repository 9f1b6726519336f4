"""Allreduces that were looked at are looked up, and never for a scenario that decides otherwise."""

import pytest

from simshuffle.job.plan.allreduce_alone import _seconds_alone, allreduce_alone
from simshuffle.job.uncertainty.inputs import scale_inputs
from tests.small import small

LINK, OPENS = "cluster.topology.link_bandwidth", "cluster.parallel_file_system.open_rate"
LATENCY = "workload.allreduce.inter_host_latency"


def test_what_is_looked_up_is_what_is_computed():
    # network-bound: the bus has 1 TB/s, a cable 10 GB/s
    base = small()
    variants = [base, scale_inputs(base, {OPENS: 0.5}), scale_inputs(base, {LINK: 0.5}), base]
    variants += [
        scale_inputs(base, {LATENCY: 3.0}),
        small(world_size=16),
        small(world_size=4),
        base,
    ]
    for scenario in variants:
        for nbytes in (8.0, 1e8, 8.0):
            assert allreduce_alone(scenario, nbytes) == _seconds_alone(scenario, nbytes)


def test_half_the_bandwidth_takes_twice_as_long():
    base = small()
    large = 1e10  # latencies do not matter
    ratio = allreduce_alone(scale_inputs(base, {LINK: 0.5}), large) / allreduce_alone(base, large)
    assert abs(ratio - 2.0) < 1e-3


def test_a_value_that_does_not_decide_is_looked_up(monkeypatch):
    base = small()
    seconds = allreduce_alone(base, 1e6)
    monkeypatch.setattr("simshuffle.job.plan.allreduce_alone._seconds_alone", None)
    assert allreduce_alone(scale_inputs(base, {OPENS: 0.5}), 1e6) == seconds


def test_scenarios_that_are_looked_at_in_turn_are_looked_up(monkeypatch):
    """Equal records of two files are two objects, as a pair of runs has them."""
    first, second = small(), scale_inputs(small(), {LINK: 0.5})
    seconds = [allreduce_alone(scenario, 1e10) for scenario in (first, second)]
    monkeypatch.setattr("simshuffle.job.plan.allreduce_alone._seconds_alone", None)
    assert [allreduce_alone(scenario, 1e10) for scenario in (first, second)] == seconds
    assert seconds[0] != seconds[1]


def test_one_rank_sums_nothing():
    assert allreduce_alone(small(world_size=1), 1e6) == 0.0


@pytest.mark.parametrize(
    ("values", "bandwidth"),
    [
        ({"cluster__host__nvlink_bandwidth": "9 GB/s"}, 9e9),
        ({"cluster__host__nvlink_bandwidth": "900 GB/s"}, 21e9),  # that of the bus
    ],
)
def test_two_ranks_of_a_host_sum_over_its_links(values, bandwidth):
    """Two steps of 3.4 us, in which each sends all bytes once: not over cables or PCIe."""
    seconds = allreduce_alone(small(world_size=2, cluster__host__gpus=2, **values), 1e8)
    assert seconds == pytest.approx(2 * 3.4e-6 + 1e8 / bandwidth)


@pytest.mark.parametrize(("pcie", "bandwidth"), [("16 GB/s", 10e9), ("4 GB/s", 4e9)])
def test_two_hosts_sum_over_a_cable_or_pcie(pcie, bandwidth):
    scenario = small(world_size=2, cluster__host__pcie_bandwidth=pcie)
    assert allreduce_alone(scenario, 1e8) == pytest.approx(2 * 9.6e-6 + 1e8 / bandwidth)
