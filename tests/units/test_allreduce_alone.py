"""Allreduces that were looked at are looked up, and never for a scenario that decides otherwise."""

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
