"""How hosts fail: what is drawn has the means, the variation and the lemons that were asked for;
what is fitted is what was drawn; Daly's period against the exact formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.job.reliability import Bursty, Exponential, Trace
from simshuffle.job.reliability.daly import daly, share, young
from simshuffle.job.reliability.fit import fit_process, lemon_share, worst_share
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


def test_dalys_period_is_the_best_of_the_exact_share():
    for save, between in ((30.0, 8 * 3600.0), (300.0, 8 * 3600.0), (600.0, 3600.0)):
        periods = np.geomspace(0.05 * save, 40 * young(save, between), 20_000)
        exact = [share(p, save, 120.0, between) for p in periods]
        best = periods[int(np.argmax(exact))]
        # higher order: within 1 % up to saves of a sixth of the time between failures
        assert daly(save, between) == pytest.approx(best, rel=0.01)
    assert daly(10.0, 3.0) == 3.0
    assert share(1e6, 1.0, 1.0, 100.0) == 0.0


def test_the_first_order_is_the_limit_of_the_exact_share():
    save, restart, between = 5.0, 60.0, 1e6
    period = young(save, between)
    exact = share(period, save, restart, between)
    # by hand: a period of 3162 s; 0.158 % of saves, 0.158 % of lost work, 0.006 % of restarts
    by_hand = 1 - 2 * math.sqrt(save / (2 * between)) - restart / between
    assert exact == pytest.approx(by_hand, abs=2e-5)


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
