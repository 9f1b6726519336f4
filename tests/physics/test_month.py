"""Where the time of a long training goes: by hand without failures and with one at a known time,
Daly's period against the best of drawn failures, and sums that are the whole."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.extensions.planning.month.daly import daly, share, young
from simshuffle.extensions.planning.month.goodput import (
    CATEGORIES,
    Saves,
    best_period,
    completion_time,
    time_by_category,
    truncate_course,
)
from simshuffle.extensions.planning.month.hosts import RestartPolicy, follow_job
from simshuffle.job.reliability import Bursty, Exponential
from simshuffle.job.reliability.faults import Faults

DAY = 86_400.0
HOUR = 3600.0


def faults(*rows):
    """Of (host, start, end, cause)."""
    host, start, end, cause = (np.array(of) for of in zip(*rows, strict=True)) if rows else [[]] * 4
    names = tuple(dict.fromkeys(list(cause)))
    numbers = np.array([names.index(of) for of in cause], dtype=int)
    plain = (np.asarray(host, dtype=int), np.asarray(start, float), np.asarray(end, float))
    return Faults(*plain, numbers, names)


def seconds(of, saves):
    return dict(zip(CATEGORIES, time_by_category(of, saves).sum(axis=0).tolist(), strict=True))


def some(found):
    return {name: value for name, value in found.items() if value}


def test_without_failures_only_saves_cost():
    of = follow_job(faults(), RestartPolicy(4), 1000.0)
    found = seconds(of, Saves(period_s=95.0, stall_s=5.0, usable_s=5.0))
    assert some(found) == {"training": 950.0, "stalls": 50.0}
    # goodput = period / (period + stall), so 1 - stall / cycle
    assert found["training"] / 1000.0 == 1 - 5 / 100


def test_one_failure_at_a_known_time():
    """Saves begin at 95, 195, 295, ... s. A host fails at 342 s: 42 s of a period are lost. It is
    noticed 20 s later; a spare is there; 10 s to start, 5 s to restore, 3 s to read its shard."""
    of = RestartPolicy(4, 1, "spare", 20.0, 10.0, 5.0, 3.0)
    job = follow_job(faults((2, 342.0, 5000.0, "gpu")), of, 1000.0)
    found = seconds(job, Saves(95.0, 5.0, 5.0))
    # from 380 on 620 s: six cycles and 20 s
    expected = {"training": 285.0 + 6 * 95.0 + 20.0, "stalls": 15.0 + 30.0, "lost": 42.0}
    expected |= {"detection": 20.0, "restart": 10.0, "restore": 5.0, "reread": 3.0}
    assert some(found) == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(1000.0)


def test_a_save_that_is_not_usable_yet_is_lost_too():
    """The save that begins at 295 s is usable at 345 s: at 342 s the one of 195 s counts."""
    job = follow_job(faults((2, 342.0, 5000.0, "gpu")), RestartPolicy(4, 1), 1000.0)
    found = seconds(job, Saves(95.0, 5.0, 50.0))
    assert found["lost"] == pytest.approx(95.0 + 42.0)
    later = follow_job(faults((2, 345.0, 5000.0, "gpu")), RestartPolicy(4, 1), 1000.0)
    assert seconds(later, Saves(95.0, 5.0, 50.0))["lost"] == pytest.approx(45.0)


def test_a_failure_while_saving_undoes_the_save():
    """At 298 s the third save is under way: 3 s of a stall, and a period is lost."""
    job = follow_job(faults((2, 298.0, 5000.0, "gpu")), RestartPolicy(4, 1), 298.0 + 1e-9)
    found = seconds(job, Saves(95.0, 5.0, 5.0))
    assert found["lost"] == pytest.approx(95.0)
    assert found["stalls"] == pytest.approx(13.0)


def test_without_a_spare_the_job_waits_for_the_repair():
    of = RestartPolicy(4, 0, "spare", 20.0, 10.0)
    job = follow_job(faults((2, 300.0, 700.0, "gpu")), of, 1000.0)
    found = seconds(job, Saves(95.0, 5.0, 5.0))
    assert found["waiting"] == pytest.approx(700.0 - 320.0)
    # a spare that failed before is none
    spare = follow_job(
        faults((4, 100.0, 600.0, "nic"), (2, 300.0, 700.0, "gpu")), RestartPolicy(4, 1), 1000.0
    )
    assert seconds(spare, Saves(95.0, 5.0, 5.0))["waiting"] == pytest.approx(300.0)


def test_an_elastic_job_is_slower_and_a_stopped_one_ends():
    fault = faults((2, 300.0, 5000.0, "gpu"))
    elastic = follow_job(fault, RestartPolicy(4, 0, "elastic", 20.0, 10.0), 1000.0)
    found = seconds(elastic, Saves(95.0, 5.0, 5.0))
    # 670 s at 3/4: six cycles and 70 s
    assert found["training"] == pytest.approx(285.0 + 0.75 * (570.0 + 70.0))
    assert found["slower"] == pytest.approx(0.25 * 640.0)
    assert found["waiting"] == 0.0
    stopped = follow_job(fault, RestartPolicy(4, 8, "stop", 20.0, 10.0), 1000.0)
    assert seconds(stopped, Saves(95.0, 5.0, 5.0))["waiting"] == pytest.approx(680.0)


def test_an_elastic_job_takes_a_repaired_host_in_at_its_next_restart():
    rows = ((2, 300.0, 400.0, "gpu"), (0, 500.0, 9000.0, "gpu"))
    job = follow_job(faults(*rows), RestartPolicy(4, 0, "elastic"), 1000.0)
    assert job.share.tolist() == [1.0, 0.75, 0.75]  # 2 is back when 0 is lost


def test_software_needs_no_other_host():
    of = RestartPolicy(4, 0, "spare", 20.0, 10.0, 5.0, 3.0, in_place=("software",))
    job = follow_job(faults((2, 300.0, 5000.0, "software")), of, 1000.0)
    found = seconds(job, Saves(95.0, 5.0, 5.0))
    assert (found["waiting"], found["reread"], found["restart"]) == (0.0, 0.0, 10.0)


def test_a_failure_while_restarting_begins_again():
    """Of the second host at 325 s, 5 s into the start that takes 10 s; noticed after 20 s again."""
    rows = ((2, 300.0, 5000.0, "gpu"), (1, 325.0, 5000.0, "gpu"))
    job = follow_job(faults(*rows), RestartPolicy(4, 2, "spare", 20.0, 10.0, 5.0), 1000.0)
    found = seconds(job, Saves(95.0, 5.0, 5.0))
    assert (found["detection"], found["restart"], found["restore"]) == (40.0, 15.0, 5.0)
    assert job.begin_s.tolist() == [0.0, 360.0]
    # one that comes before the first is noticed needs no more
    rows = ((2, 300.0, 5000.0, "gpu"), (1, 310.0, 5000.0, "gpu"))
    job = follow_job(faults(*rows), RestartPolicy(4, 2, "spare", 20.0, 10.0, 5.0), 1000.0)
    assert job.begin_s.tolist() == [0.0, 335.0]


def test_the_end_of_so_much_training():
    """950 s of training without failures: nine stalls between ten periods; with the failure at
    342 s, whose 42 s are done again after 38 s, 80 s later."""
    saves = Saves(95.0, 5.0, 5.0)
    plain = follow_job(faults(), RestartPolicy(4), 5000.0)
    assert completion_time(plain, saves, 950.0) == pytest.approx(950.0 + 9 * 5.0)
    of = RestartPolicy(4, 1, "spare", 20.0, 10.0, 5.0, 3.0)
    failed = follow_job(faults((2, 342.0, 9000.0, "gpu")), of, 5000.0)
    end = completion_time(failed, saves, 950.0)
    # after 380 s: 665 s of training, seven periods, six stalls between them
    assert end == pytest.approx(380.0 + 665.0 + 30.0)
    cut = seconds(truncate_course(failed, end), saves)
    assert cut["training"] == pytest.approx(950.0)
    assert sum(cut.values()) == pytest.approx(end)
    assert completion_time(failed, saves, 1e6) == float("inf")


def test_the_end_on_fewer_hosts_and_within_what_a_failure_undoes():
    """A host of four fails at 342 s: 285 s of 327 s count, and from 372 s on three train."""
    saves = Saves(95.0, 5.0, 5.0)
    policy = RestartPolicy(4, 0, "elastic", 20.0, 10.0)
    job = follow_job(faults((2, 342.0, 9000.0, "gpu")), policy, 5000.0)
    # 142.5 s more on three of four are 190 s, two periods with a stall between
    assert completion_time(job, saves, 285.0 + 142.5) == pytest.approx(372.0 + 190.0 + 5.0)
    # what the failure undoes is done when it is done: three stalls before 300 s, and 327 s
    assert completion_time(job, saves, 300.0) == pytest.approx(315.0)
    assert completion_time(job, saves, 327.0) == pytest.approx(342.0)
    assert completion_time(job, saves, 328.0) == pytest.approx(372.0 + 43.0 / 0.75)
    assert completion_time(job, saves, 0.0) == 0.0


def test_a_course_is_cut_in_training_and_after_a_failure():
    """Training to 342 s, then 20 s to notice, 10 s to start, 5 s to restore, 3 s to read."""
    policy = RestartPolicy(4, 2, "spare", 20.0, 10.0, 5.0, 3.0)
    rows = ((2, 342.0, 5000.0, "gpu"), (1, 600.0, 5000.0, "gpu"))
    job = follow_job(faults(*rows), policy, 1000.0)
    assert job.begin_s.tolist() == [0.0, 380.0, 638.0]

    def cut(length):
        course = truncate_course(job, length)
        assert course.length == length
        return course.end_s.tolist(), course.cause.tolist(), course.down_s.tolist()

    first, down = [20.0, 0.0, 10.0, 5.0, 3.0], [0.0] * 5
    assert cut(300.0) == ([300.0], [-1], [down])
    assert cut(342.0) == ([342.0], [-1], [down])
    assert cut(365.0) == ([342.0], [0], [[20.0, 0.0, 3.0, 0.0, 0.0]])
    assert cut(379.0) == ([342.0], [0], [[20.0, 0.0, 10.0, 5.0, 2.0]])
    assert cut(380.0) == ([342.0], [0], [first])
    assert cut(500.0) == ([342.0, 500.0], [0, -1], [first, down])
    # the course itself stays as it is
    assert job.end_s.tolist() == [342.0, 600.0, 1000.0]
    assert job.down_s.tolist() == [first, first, down] and job.cause.tolist() == [0, 0, -1]
    assert truncate_course(job, 1000.0) is job


def test_the_best_period_is_of_the_law_or_the_cheapest():
    """With a cost of p / 10^4 + 1 / p + 0.05 it is 100 s, where two terms are 0.01 each."""

    def law(periods, linear=1e-4, inverse=1.0):
        return [1 - (linear * p + inverse / p + 0.05) for p in periods]

    # costs 0.102, 0.075, 0.0705, 0.0703, 0.075, and 0.3, which no law says: the range is 0.23,
    # and all but the last cost at most a quarter of that more
    periods = [20.0, 50.0, 80.0, 120.0, 200.0, 500.0]
    assert best_period(periods, [*law(periods[:5]), 0.7]) == pytest.approx(100.0)
    # of three around the cheapest, none is fitted
    assert best_period([50.0, 120.0, 200.0], law([50.0, 120.0, 200.0])) == 120.0
    # a best outside of the cheap periods: 0.0753 to 0.0802 of 0.0753 to 0.1511
    assert best_period([201.0, 220, 240, 260, 1000], law([201, 220, 240, 260, 1000])) == 201.0
    assert best_period([10.0, 38, 41, 45, 49], law([10, 38, 41, 45, 49])) == 49.0
    # costs that only fall, and that only rise
    assert best_period([50.0, 55, 60, 65], law([50, 55, 60, 65], linear=-1e-4)) == 65.0
    assert best_period([50.0, 55, 60, 65], law([50, 55, 60, 65], 1e-4, -0.2)) == 50.0


def drawn(process, of, days, seeds):
    return [
        follow_job(
            process.draw(np.random.default_rng(n), of.hosts + of.spares, days * DAY), of, days * DAY
        )
        for n in range(seeds)
    ]


def test_dalys_period_is_within_a_tenth_of_the_best_of_drawn_failures():
    """32 hosts that fail every 20 days: a failure every 15 hours; saves of 60 s."""
    process = Exponential.model_validate({"mean_between": "20 d", "repair": {"mean": "1 h"}})
    of = RestartPolicy(32, 8, "spare", 60.0, 120.0, 60.0)
    jobs = drawn(process, of, 54, 40)
    between, restart = 20 * DAY / 32, 240.0
    expected = daly(60.0, between)
    periods = expected * np.geomspace(1 / 16, 16, 49)
    goodput = [
        np.mean([seconds(job, Saves(p, 60.0, 60.0))["training"] / job.length for job in jobs])
        for p in periods
    ]
    best = best_period(periods, goodput)
    assert best == pytest.approx(expected, rel=0.1)
    # and what is drawn is what Daly's formula says, for any period. 3,500 failures: an error of
    # 1.7 % of what they cost, 2 % to 45 % of the time
    for period, found in zip(periods[::8], goodput[::8], strict=True):
        exact = share(period, 60.0, restart, between)
        assert 1 - found == pytest.approx(1 - exact, rel=0.06)


def test_bursts_and_lemons_cost_no_more_than_their_number():
    """At the same mean, failures in a burst find less that is not saved: with one every 7.5 h and a
    save every 10 h."""
    plain = {"mean_between": "20 d", "repair": {"mean": "1 h"}}
    of = RestartPolicy(64, 32, "spare", 60.0, 60.0, 30.0)
    saves = Saves(10 * HOUR, 20.0, 20.0)
    alike = drawn(Exponential.model_validate(plain), of, 54, 30)
    bursty = drawn(Bursty.model_validate({**plain, "kind": "bursty", "variation": 3}), of, 54, 30)
    lost = [np.mean([seconds(job, saves)["lost"] for job in jobs]) for jobs in (alike, bursty)]
    assert lost[1] < 0.9 * lost[0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(0, 5),
    st.sampled_from(["spare", "elastic", "stop"]),
    st.floats(1, 20),
    st.tuples(*[st.floats(0, 5000)] * 4),
    st.tuples(st.floats(10, 1e5), st.floats(0, 1000), st.floats(0, 5000)),
    st.integers(0, 10_000),
)
def test_categories_add_up_to_the_days(hosts, spares, policy, days, downs, times, seed):
    plain = {
        "mean_between": "2 d",
        "repair": {"mean": "10 h", "median": "2 h"},
        "causes": {"gpu": 2, "software": 1},
    }
    of = RestartPolicy(hosts, spares, policy, *downs, in_place=("software",))
    (job,) = drawn(Exponential.model_validate(plain), of, days, 1)[:1]
    found = time_by_category(job, Saves(*times))
    assert found.sum() == pytest.approx(days * DAY, rel=1e-9)
    assert found.min() >= -1e-6
    # rows follow one another without a gap
    ends = job.end_s + job.down_s.sum(axis=1)
    assert np.allclose(ends[:-1], job.begin_s[1:])
    short = truncate_course(job, 0.6 * days * DAY)
    assert time_by_category(short, Saves(*times)).sum() == pytest.approx(0.6 * days * DAY, rel=1e-9)


def test_dalys_period_is_the_best_of_the_exact_share():
    for save, between in ((30.0, 8 * 3600.0), (300.0, 8 * 3600.0), (600.0, 3600.0)):
        periods = np.geomspace(0.05 * save, 40 * young(save, between), 20_000)
        exact = [share(p, save, 120.0, between) for p in periods]
        best = periods[int(np.argmax(exact))]
        # higher order: within 1 % up to saves of a sixth of the time between failures
        assert daly(save, between) == pytest.approx(best, rel=0.01)
    assert daly(10.0, 3.0) == 3.0
    # from twice the time between failures on: just below, x is 1, and the formula says
    # sqrt(4) M (1 + 1/3 + 1/9) - 2 M = 8/9 M
    assert daly(6.0, 3.0) == 3.0
    assert daly(6.0 - 1e-9, 3.0) == pytest.approx(8 / 3)
    # nothing is of use where period, save and restart are over 700 times between failures
    assert share(999.0, 1.0, 401.0, 2.0) == 0.0 < share(999.0, 1.0, 399.0, 2.0)
    assert share(1e6, 1.0, 1.0, 100.0) == 0.0


def test_the_first_order_is_the_limit_of_the_exact_share():
    save, restart, between = 5.0, 60.0, 1e6
    period = young(save, between)
    exact = share(period, save, restart, between)
    # by hand: a period of 3162 s; 0.158 % of saves, 0.158 % of lost work, 0.006 % of restarts
    by_hand = 1 - 2 * math.sqrt(save / (2 * between)) - restart / between
    assert exact == pytest.approx(by_hand, abs=2e-5)
