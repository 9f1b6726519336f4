"""How hosts fail: what is drawn has the means, the variation and the lemons that were asked for;
what is fitted is what was drawn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import InputError
from simshuffle.job.reliability import Bursty, Exponential, Trace
from simshuffle.job.reliability.faults import Faults
from simshuffle.job.reliability.fit import fit_process, lemon_share, worst_share
from simshuffle.job.reliability.processes import Repair, replay_trace
from simshuffle.job.reliability.trace import FaultTrace

DAY = 86_400.0
REPAIR = {"mean": "5.4 d", "median": "20.4 h"}


def drawn(process, hosts, days, seed=1):
    return process.draw(np.random.default_rng(seed), hosts, days * DAY)


def bursty(**values):
    plain = {"kind": "bursty", "mean_between": "224 d", "variation": 1.8, "repair": REPAIR}
    return Bursty.model_validate(plain | values)


def test_exponential_gaps_have_the_mean_and_a_variation_of_one():
    process = Exponential.model_validate({"mean_between": "10 d", "repair": REPAIR})
    found = drawn(process, 50, 4000)  # 20,000 faults
    gaps = np.diff(found.start_s)
    # 3 standard errors of 1/sqrt(20,000) = 0.7 %
    assert gaps.mean() == pytest.approx(10 * DAY / 50, rel=0.021)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert len(found) == pytest.approx(process.expected_faults(50, 4000 * DAY), rel=0.021)
    counts = np.bincount(found.host, minlength=50)
    assert counts.var() == pytest.approx(counts.mean(), rel=0.65)  # hosts alike: Poisson


def test_repairs_have_mean_and_median():
    process = Exponential.model_validate({"mean_between": "1 d", "repair": REPAIR})
    found = drawn(process, 100, 2000)
    times = found.end_s - found.start_s
    assert np.median(times) == pytest.approx(20.4 * 3600, rel=0.03)
    # sigma^2 = 2 ln(5.4 x 24 / 20.4) = 3.7: one standard error of 200,000 is 1.4 %
    assert times.mean() == pytest.approx(5.4 * DAY, rel=0.05)
    fixed = Exponential.model_validate({"mean_between": "1 d", "repair": {"mean": "2 h"}})
    one = drawn(fixed, 10, 10)
    assert np.allclose(one.end_s - one.start_s, 7200.0)


def test_bursty_gaps_have_their_variation_and_lemons_their_share():
    process = bursty(lemons={"hosts": 0.05, "faults": 0.3})
    found = drawn(process, 400, 12_000)  # 21,400 faults
    gaps = np.diff(found.start_s)
    assert gaps.mean() == pytest.approx(224 * DAY / 400, rel=0.04)
    assert gaps.std() / gaps.mean() == pytest.approx(1.8, rel=0.04)
    counts = np.sort(np.bincount(found.host, minlength=400))
    # 20 lemons of 320 faults each, the others of 39: the worst are the lemons
    assert counts[-20:].sum() / len(found) == pytest.approx(0.3, rel=0.04)


def test_any_moment_may_be_the_beginning():
    """With faults that begin at a fault, short times would have too many: (C^2 - 1) / 2 more."""
    process = bursty(variation=3)
    numbers = [len(drawn(process, 400, 10, seed)) for seed in range(2000)]
    # 17.9 in the mean; the variance of the number is at most C^2 times that: 3 errors are 0.85
    assert np.mean(numbers) == pytest.approx(400 * 10 / 224, abs=0.85)


def test_causes_have_their_shares_and_some_are_repaired_in_place():
    causes = {"gpu": 3, "software": 1}
    plain = {"mean_between": "1 d", "repair": REPAIR, "causes": causes}
    found = drawn(Exponential.model_validate(plain), 100, 100)
    software = found.is_repaired_in_place(["software"])
    assert software.mean() == pytest.approx(0.25, abs=0.015)
    assert {found.causes[n] for n in found.cause[software]} == {"software"}


def trace_of(found, hosts, days):
    return FaultTrace(found, hosts, days * DAY, 0, "")


def test_a_fit_recovers_the_process():
    process = bursty(lemons={"hosts": 0.05, "faults": 0.3})
    got = fit_process(trace_of(drawn(process, 400, 6000), 400, 6000))
    assert got.mean_between == pytest.approx(224 * DAY, rel=0.06)
    assert got.process.variation == pytest.approx(1.8, rel=0.06)
    assert got.process.lemons.faults == pytest.approx(0.3, rel=0.05)
    assert got.repair_median == pytest.approx(20.4 * 3600, rel=0.06)
    assert got.process.repair.mean == pytest.approx(5.4 * DAY, rel=0.12)


def test_a_fit_of_few_faults_takes_chance_for_no_lemons():
    """Of 313 faults of 400 like hosts the 20 worst have a fifth; of lemons, more."""
    shares = []
    for seed in range(8):
        alike = drawn(bursty(variation=1), 400, 175, seed)
        got = fit_process(trace_of(alike, 400, 175))
        assert got.by_chance == pytest.approx(0.2, abs=0.02)
        shares.append(got.process.lemons.faults if got.process.lemons else 0.05)
    assert np.median(shares) < 0.12
    assert lemon_share(400, 313, 20, worst_share(400, 313, 20, 0.3)) == pytest.approx(0.3, abs=0.01)


HOSTS_BY_FAULT = [3] * 6 + [7] * 4 + [0, 0, 1, 1, 2, 4, 5, 6, 8, 9]


def recorded(repair_seconds, length=2000.0):
    """Return 20 faults of 10 hosts: gaps of 10 s and 30 s in turn, then one of 300 s."""
    starts = np.cumsum([0.0, *[10.0, 30.0] * 9, 300.0])
    ends = np.minimum(starts + repair_seconds, length)
    causes = np.array([0] * 12 + [1] * 8)
    faults = Faults(np.array(HOSTS_BY_FAULT), starts, ends, causes, ("gpu", "nic"))
    return FaultTrace(faults, 10, length, 0, "")


def test_statistics_of_a_trace_by_hand():
    """18 repairs of 4 s, one of 42 s; the last fault lasts to the end of the trace."""
    trace = recorded(np.array([4.0] * 18 + [42.0, 9999.0]))
    fit = fit_process(trace, worst=0.2)
    assert (fit.faults, fit.hosts, fit.mean_between) == (20, 10, 10 * 2000.0 / 20)
    # gaps sum up to 9 x 40 + 300 = 660, squares to 9 x (100 + 900) + 90,000 = 99,000
    expected_variation = math.sqrt(19 * 99_000 / 660**2 - 1)
    assert fit.variation == pytest.approx(expected_variation)
    assert fit.process.variation == pytest.approx(expected_variation)
    # (18 x 4 + 42) / 19 = 6
    assert (fit.repair_mean, fit.repair_median) == (6.0, 4.0)
    assert (fit.process.repair.mean, fit.process.repair.median) == (6.0, 4.0)
    assert fit.process.causes == {"gpu": 12.0, "nic": 8.0}
    assert fit.process.mean_between == 1000.0
    # hosts 3 and 7 of ten have 6 + 4 of 20 faults: more than two of ten alike have
    assert fit.worst_faults == 0.5 and 0.2 < fit.by_chance < 0.5
    assert fit.process.lemons.hosts == 0.2 and fit.process.lemons.faults > 0.25
    assert fit_process(trace).worst_faults == 6 / 20  # one host at least


def test_long_gaps_are_unrecorded_time_and_short_ones_no_less_than_chance():
    trace = recorded(np.full(20, 4.0))
    fit = fit_process(trace, longest_gap=30.0)
    assert fit.variation == pytest.approx(10.0 / 20.0)  # 10 s and 30 s in turn
    assert fit.process.variation == 1.0
    # no gap at all, and no time between any
    assert fit_process(trace, longest_gap=1.0).variation == 1.0
    zeros = np.zeros(20, int)
    at_once = Faults(zeros, zeros.astype(float), np.ones(20), zeros, ("gpu",))
    together = fit_process(FaultTrace(at_once, 1, 10.0, 0, ""))
    assert (together.variation, together.worst_faults) == (1.0, 1.0)
    assert together.process.lemons is None  # a single host is no lemon


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.5] * 20, (0.5, 0.5)),  # a median of less than 1 s, but not above the mean
        ([0.5] * 16 + [13.0] * 4, (3.0, 1.0)),  # (16 x 0.5 + 4 x 13) / 20 = 3
        # none has ended at 2000 s. Starts are 40 k and 40 k + 10 for k = 0 .. 8, 360, 660:
        # in the mean (9 x 330 + 360 + 660) / 20 = 199.5, in the middle 185: a median of 1815 s
        # is above the mean
        ([9999.0] * 20, (2000 - 199.5, 2000 - 199.5)),
    ],
)
def test_repairs_of_a_fit(seconds, expected):
    fit = fit_process(recorded(np.array(seconds)))
    assert fit.process.repair.mean == pytest.approx(expected[0])
    assert fit.process.repair.median == pytest.approx(expected[1])


def test_a_fit_needs_twenty_faults():
    trace = recorded(np.full(20, 4.0))
    faults = trace.faults
    columns = (faults.host[1:], faults.start_s[1:], faults.end_s[1:], faults.cause[1:])
    with pytest.raises(InputError, match="at least 20 faults"):
        fit_process(FaultTrace(Faults(*columns, faults.causes), 10, 2000.0, 0, ""))


@pytest.mark.parametrize(
    ("hosts", "faults", "num_worst", "lemons", "expected", "error"),
    [
        # both faults on one host with 0.8^2 + 0.2^2 = 0.68, else one each
        (2, 2, 1, 0.8, 0.5 + 0.5 * 0.68, 0.5 * math.sqrt(0.68 * 0.32 / 400)),
        # 0.8^2 + 2 x 0.1^2 = 0.66
        (3, 2, 1, 0.8, 0.5 + 0.5 * 0.66, 0.5 * math.sqrt(0.66 * 0.34 / 400)),
        # on three hosts of 0.4, 0.4, 0.1, 0.1 with 6 x (2 x 0.016 + 2 x 0.004) = 0.24
        (4, 3, 2, 0.8, 1 - 0.24 / 3, math.sqrt(0.24 * 0.76 / 400) / 3),
    ],
)
def test_the_worst_hosts_have_their_share(hosts, faults, num_worst, lemons, expected, error):
    share = worst_share(hosts, faults, num_worst, lemons)
    assert share == pytest.approx(expected, abs=3 * error)
    assert lemon_share(hosts, faults, num_worst, share) == pytest.approx(lemons, abs=0.02)
    by_chance = worst_share(hosts, faults, num_worst, num_worst / hosts)
    assert lemon_share(hosts, faults, num_worst, by_chance) == num_worst / hosts


def test_a_trace_goes_round_from_any_moment():
    """Faults at 1 d and 9 d of 10 d, seen from 8 d on: at 1 d and, a round later, at 3 d."""
    hosts, starts = np.array([0, 1]), np.array([1.0, 9.0])
    faults = Faults(hosts, starts, starts + 3.0, np.array([1, 0]), ("gpu", "nic"))
    trace = FaultTrace(faults, 3, 10.0, 0, "")
    names = np.array([5, 6, -1])
    host, start, end, cause = replay_trace(trace, names, 8.0, 10.0)
    assert (host.tolist(), cause.tolist()) == ([6, 5], [0, 1])
    assert (start.tolist(), end.tolist()) == ([1.0, 3.0], [4.0, 6.0])
    # what starts at time 0 is in, what starts at the horizon is not
    assert replay_trace(trace, names, 9.0, 2.0)[1].tolist() == [0.0]
    assert replay_trace(trace, names, 1.0, 10.0)[1].tolist() == [0.0, 8.0]
    # a host of the trace that stands for none here
    assert replay_trace(trace, np.array([-1, 0, 1]), 0.0, 30.0)[0].tolist() == [0] * 3
    assert replay_trace(trace, names, 0.0, 30.0)[1].tolist() == [1, 9, 11, 19, 21, 29]


def test_copies_of_a_trace_begin_at_other_moments(tmp_path):
    path = tmp_path / "faults.csv"
    path.write_text("host,start,end,class\na,1 d,2 d,gpu\nb,3 d,3.5 d,nic\n")
    plain = {"kind": "trace", "path": str(path), "hosts": 4, "length": "10 d"}
    trace = Trace(**plain)
    # 6 hosts of 4 for 5 d of 10 d: 2 x 6 / 4 x 5 / 10 = 1.5
    assert trace.expected_faults(6, 5 * DAY) == pytest.approx(1.5)
    both = drawn(trace, 8, 10)
    first, second = both.start_s[both.host < 4], both.start_s[both.host >= 4]
    assert first.tolist() == [DAY, 3 * DAY] and len(second) == 2
    assert not set(first) & set(second)
    shifted = drawn(Trace(**plain, shift=True), 4, 10)
    assert len(shifted) == 2 and not set(first) & set(shifted.start_s)
    # of a copy that is not full, hosts are drawn, and all have numbers of this machine
    seen = {host for seed in range(30) for host in drawn(trace, 6, 10, seed).host.tolist()}
    assert seen == {0, 1, 4, 5}


def test_a_median_as_long_as_the_mean_is_fixed():
    assert Repair(mean="2 h", median="2 h").draw(np.random.default_rng(0), 3).tolist() == [7200] * 3
    with pytest.raises(ValueError, match="not be longer"):
        Repair(mean="2 h", median="3 h")


def test_single_hosts_are_no_lemons_and_of_two_one_is():
    process = bursty(lemons={"hosts": 0.9, "faults": 0.8})
    assert set(drawn(process, 1, 100_000).host) == {0}
    # of two hosts one is a lemon, though 0.9 x 2 is rounded to two: 0.8 of 890 faults
    counts = np.bincount(drawn(process, 2, 100_000).host, minlength=2)
    assert counts.max() / counts.sum() == pytest.approx(0.8, abs=0.04)
    # of ten hosts nine: each has 0.8 / 9 of 4,460, the other 0.2
    counts = np.bincount(drawn(process, 10, 100_000).host, minlength=10)
    assert counts.max() / counts.sum() == pytest.approx(0.2, abs=0.02)


def test_a_trace_is_replayed_and_scaled(tmp_path):
    path = tmp_path / "faults.csv"
    path.write_text("host,start,end,class\na,1 d,2 d,gpu\nb,3 d,3.5 d,nic\n")
    trace = Trace(kind="trace", path=str(path), hosts=4, length="10 d")
    same = drawn(trace, 4, 10)
    assert (same.host.tolist(), same.start_s.tolist()) == ([0, 1], [DAY, 3 * DAY])
    assert same.end_s.tolist() == [2 * DAY, 3.5 * DAY]
    assert [same.causes[n] for n in same.cause] == ["gpu", "network"]
    twice = drawn(trace, 4, 20)  # goes round
    assert twice.start_s.tolist() == [DAY, 3 * DAY, 11 * DAY, 13 * DAY]
    more = drawn(trace, 400, 10)  # 100 copies: all 200 faults, each once
    assert len(more) == 200 == trace.expected_faults(400, 10 * DAY)
    assert sorted(np.unique(more.host) // 4) == sorted([*range(100)] * 2)
    assert np.all(np.diff(more.start_s) >= 0) and np.all(more.end_s > more.start_s)
    fewer = np.mean([len(drawn(trace, 2, 10, seed)) for seed in range(300)])
    assert fewer == pytest.approx(1.0, abs=0.15)  # each of two faulty hosts is in with 1/2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 500), st.floats(1, 400), st.floats(1, 5), st.integers(0, 1000))
def test_draws_are_in_order_and_within_the_horizon(hosts, days, variation, seed):
    process = bursty(variation=variation, lemons={"hosts": 0.1, "faults": 0.4})
    found = drawn(process, hosts, days, seed)
    again = drawn(process, hosts, days, seed)
    assert np.array_equal(found.start_s, again.start_s)
    assert np.all(np.diff(found.start_s) >= 0)
    assert len(found) == 0 or found.start_s[-1] < days * DAY
    assert np.all((found.host >= 0) & (found.host < hosts))
    assert np.all(found.end_s > found.start_s)
