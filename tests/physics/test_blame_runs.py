"""Who was waited for in a simulated epoch, on tables written by hand."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd
import pytest

from simshuffle.extensions.doctor.blame.runs import ranks_per_host
from simshuffle.extensions.doctor.blame.waited_for import (
    COMPUTING,
    LABELS,
    WaitedForRow,
    apply_faults,
    find_bounds,
    find_late_hosts,
    find_own_lateness,
    idle_seconds,
    rank_rows,
)
from simshuffle.report.timeline import EXCLUSIVE, PHASES

REDUCE = 2.0


def phases(own):
    """Rows of ranks that do ``own`` (steps, ranks) s of a phase each, wait for the last, and reduce
    for 2 s; ``own`` is a list of pairs of phase and such an array, one after the other."""
    rows, begin = [], 0.0
    whole = sum(np.asarray(seconds, float) for _, seconds in own)
    for step, arrivals in enumerate(whole):
        for rank, arrival in enumerate(arrivals):
            parts = [(phase, seconds[step][rank]) for phase, seconds in own]
            parts += [("wait_allreduce", max(arrivals) - arrival), ("allreduce", REDUCE)]
            now = begin
            for phase, seconds in parts:
                if seconds > 0:
                    rows.append((step + 1, rank, phase, now, now + seconds))
                    now += seconds
        begin += max(arrivals) + REDUCE
    table = pd.DataFrame(rows, columns=["iteration", "rank", "phase", "start_s", "end_s"])
    return table.assign(phase=pd.Categorical(table["phase"], PHASES))


def names(count):
    return [f"h{number}" for number in range(count)]


def test_the_one_that_reads_longest_is_waited_for():
    """Rank 2 reads 10 s, the three others 2 s: each of them waits 8 s at each of 4 steps, an
    average rank 3/4 of that: 6 s a step, 24 s of the epoch's 48."""
    reads = [[2.0, 2.0, 10.0, 2.0]] * 4
    (row,) = find_late_hosts(phases([("io", reads)]), 48.0, names(4), 1)
    assert (row.what, row.kind, row.cause) == ("h2", "host", "io")
    assert row.seconds == pytest.approx(24.0)
    assert row.share == pytest.approx(0.5)


def test_the_cause_is_what_it_does_longer_and_not_what_all_do_long():
    """All compute 20 s; rank 0 decodes 3 s, the other 1 s. It waits 2 s, an average rank 1 s."""
    own = [("decode", [[3.0, 1.0]] * 3), ("forward", [[20.0, 20.0]] * 3)]
    (row,) = find_late_hosts(phases(own), 75.0, names(2), 1)
    assert (row.what, row.cause) == ("h0", "decode")
    assert row.seconds == pytest.approx(3.0)


def test_a_slow_host_is_named_and_of_a_slow_gpu_its_rank():
    """Two hosts of two GPUs. The backward pass takes 5 s instead of 1 s on both of h1: two of four
    ranks wait 4 s, 2 s a step. On one of them alone three wait: 3 s a step."""
    slow_host = [[1.0, 1.0, 5.0, 5.0]] * 3
    (row,) = find_late_hosts(phases([("backward", slow_host)]), 21.0, names(2), 2)
    assert (row.what, row.kind, row.cause) == ("h1", "host", COMPUTING)
    assert row.seconds == pytest.approx(3 * 2.0)
    slow_gpu = [[1.0, 1.0, 1.0, 5.0]] * 3
    (row,) = find_late_hosts(phases([("backward", slow_gpu)]), 21.0, names(2), 2)
    assert (row.what, row.kind) == ("3 on h1", "rank")
    assert row.seconds == pytest.approx(3 * 3.0)


def test_two_that_are_slow_alike_share_what_is_waited():
    """Neither is excused by the other. Of 6 ranks 4 wait 3 s a step: 2 s, 1 s for each."""
    own = [[1.0, 4.0, 1.0, 1.0, 4.0, 1.0]] * 3
    rows = find_late_hosts(phases([("forward", own)]), 18.0, names(6), 1)
    assert {row.what for row in rows} == {"h1", "h4"}
    assert [row.seconds for row in rows] == pytest.approx([3.0, 3.0])


def test_an_iteration_that_stands_for_others_counts_as_often():
    own = phases([("io", [[2.0, 2.0, 10.0, 2.0]] * 4)])
    (row,) = find_late_hosts(
        own.assign(weight=np.where(own["iteration"] == 2, 11.0, 1.0)), 98.0, names(4), 1
    )
    assert row.seconds == pytest.approx(14 * 6.0)


def test_whoever_is_last_by_chance_is_not_to_blame():
    """Times of all are drawn alike, so nobody is later than others in more than by chance."""
    own = 1.0 + np.random.default_rng(5).lognormal(0.0, 0.5, (40, 8))
    assert find_late_hosts(phases([("forward", own)]), 200.0, names(8), 1) == []
    own[:, 3] *= 2
    (row,) = find_late_hosts(phases([("forward", own)]), 200.0, names(8), 1)
    assert row.what == "h3"


def test_one_that_is_late_every_other_time_is_late_for_all_that():
    """Two workers load two batches at once, so the others wait every second time."""
    own = 1.0 + np.random.default_rng(5).lognormal(0.0, 0.01, (10, 8))
    own[::2, 6] += 5
    (row,) = find_late_hosts(phases([("decode", own)]), 60.0, names(8), 1)
    assert row.what == "h6"
    assert row.seconds == pytest.approx(5 * 5 * 7 / 8, rel=0.02)


def links(*rows):
    columns = ["link", "tier", "capacity", "mean_utilisation", "peak_utilisation"]
    return pd.DataFrame(rows, columns=columns)


def test_a_cable_at_a_quarter_of_its_rate_costs_three_quarters_of_its_use():
    """It is in use 40 s of 100; at the rate of its peers it were 10 s: 30 s are waited for it. No
    more than all wait for messages, and not for what is hidden behind computing."""
    of = links(("a>s", "up", 1.0, 0.4, 1.0), *((f"{n}>s", "up", 4.0, 0.1, 1.0) for n in "bcd"))
    (row,) = find_bounds(of, 100.0, {"allreduce": 50.0, COMPUTING: 40.0})
    assert (row.what, row.kind, row.cause) == ("a>s", "link", "allreduce")
    assert row.seconds == pytest.approx(30.0)
    assert find_bounds(of, 100.0, {"exchange": 7.0, "io": 1.0})[0].seconds == pytest.approx(8.0)
    assert find_bounds(of, 100.0, {"exchange": 7.0})[0].cause == "exchange"
    assert find_bounds(of, 100.0, {"exchange": 50.0}, 15.0)[0].seconds == pytest.approx(25.0)
    assert find_bounds(of, 100.0, {"exchange": 50.0}, 45.0) == []
    assert find_bounds(of.assign(peak_utilisation=0.9), 100.0, {"exchange": 50.0}) == []


def test_a_cable_that_is_slow_for_half_of_an_epoch():
    """At a quarter of its rate for half of it, a link that carries evenly is in use 0.5 + 2 = 2.5
    times as long: 25 s in place of 10 s, of which its peers, healthy, have 10."""
    healthy = ("up", 4.0, 0.1, 1.0)
    of = links(("a>s", *healthy), ("s>a", *healthy), ("b>s", *healthy), ("c>s#1", *healthy))
    of = pd.concat([of, links(("d>s", *healthy), ("e>s", *healthy), ("f>s", *healthy))])
    fault = {"what": "s>a", "at_s": 150.0, "until_s": None, "rate": 0.25}
    slowed = apply_faults(of, [fault], 100.0, 200.0)
    assert slowed["mean_utilisation"].tolist() == pytest.approx([0.25, 0.25, *[0.1] * 5])
    (row, other) = find_bounds(slowed, 100.0, {"allreduce": 50.0})
    assert {row.what, other.what} == {"a>s", "s>a"}
    assert row.seconds == pytest.approx(15.0)
    assert apply_faults(of, [fault], 0.0, 100.0).equals(of)
    assert apply_faults(of, [{**fault, "rate": 0.0}], 100.0, 200.0).equals(of)
    parallel = apply_faults(of, [{**fault, "what": "c>s#1"}], 100.0, 200.0)
    assert parallel["mean_utilisation"].tolist() == pytest.approx([0.1] * 3 + [0.25] + [0.1] * 3)
    switch = apply_faults(of, [{**fault, "what": "s"}], 100.0, 200.0)
    assert (switch["mean_utilisation"] > 0.2).all()
    devices = links(("h0.ssd", "ssd", 1.0, 0.2, 1.0), ("h1.ssd", "ssd", 1.0, 0.2, 1.0))
    of_host = apply_faults(devices, [{**fault, "what": "h0"}], 100.0, 200.0)
    assert of_host["mean_utilisation"].tolist() == pytest.approx([0.5, 0.2])


def test_a_link_that_carries_most_is_waited_for_up_to_the_next_one():
    """In use 50 s, the next one of any kind 35 s: alike, it would be 15 s less. Of two such links
    neither alone is the reason."""
    of = links(("a", "x", 1.0, 0.5, 1.0), ("b", "x", 1.0, 0.1, 1.0), ("c", "y", 9.0, 0.35, 1.0))
    (row,) = find_bounds(of, 100.0, {"exchange": 60.0})
    assert (row.what, row.seconds) == ("a", pytest.approx(15.0))
    assert find_bounds(of.assign(mean_utilisation=0.5), 100.0, {"exchange": 60.0}) == []


def test_the_server_in_use_longest_is_waited_for_by_all_that_read():
    of = links(
        ("pfs.bandwidth", "pfs.bandwidth", 1e10, 0.3, 1.0), ("pfs.open", "pfs.open", 9.0, 0.95, 1.0)
    )
    (row,) = find_bounds(of, 100.0, {"io": 60.0, "exchange": 5.0})
    assert (row.what, row.kind, row.cause) == ("pfs.open", "server", "io")
    assert row.seconds == pytest.approx(60.0)
    assert find_bounds(of, 100.0, {"exchange": 5.0}) == []


def test_hosts_that_are_late_by_a_slow_cable_are_not_named_beside_it():
    own = find_late_hosts(phases([("exchange", [[2.0, 2.0, 10.0]] * 4)]), 48.0, names(3), 1)
    of = links(("a>s", "up", 1.0, 0.5, 1.0), *((f"{n}>s", "up", 4.0, 0.1, 1.0) for n in "bcd"))
    bounds = find_bounds(of, 48.0, {"exchange": 40.0})
    assert [row.what for row in rank_rows(own, bounds)] == ["a>s"]
    computing = find_late_hosts(phases([("forward", [[2.0, 2.0, 10.0]] * 4)]), 48.0, names(3), 1)
    assert {row.what for row in rank_rows(computing, bounds)} == {"a>s", "h2"}


def test_every_phase_is_a_cause_of_its_own_or_computing():
    """So one that is added later is a cause, without a change here."""
    assert sorted(chain(*LABELS.values())) == sorted(EXCLUSIVE)


def busy(share):
    return links(("pfs.open", "pfs.open", 9.0, share, 1.0), ("a", "x", 1.0, 0.1, 0.5))


def test_a_host_that_the_busy_server_served_last_is_not_named_beside_the_server():
    """h2 is last by its reads in all of 4 steps, 6 s each; the server, in use for 44 of 48 s, is
    waited for longer. Its slow passes (h1, 1.5 s a step for an average rank) are its own."""
    reads = phases([("io", [[2.0, 2.0, 10.0, 2.0]] * 4)])
    together = {"io": 40.0}
    of, hosts = busy(44 / 48), names(4)
    bounds = find_bounds(of, 48.0, together)
    assert find_own_lateness(reads, 48.0, hosts, 1, bounds) == []
    assert find_own_lateness(reads, 48.0, hosts, 1, find_bounds(of, 48.0, {"io": 20.0})) != []
    both = phases([("io", [[2.0, 2.0, 10.0, 2.0]] * 4), ("forward", [[1.0, 1.0, 3.0, 1.0]] * 4)])
    (row,) = find_own_lateness(both, 56.0, hosts, 1, find_bounds(busy(52 / 56), 56.0, together))
    assert (row.what, row.cause) == ("h2", COMPUTING)
    assert row.seconds == pytest.approx(4 * 2.0 * 3 / 4)


def test_nobody_saves_more_than_the_server_is_idle():
    """The slow GPU of h1 costs 4 s a step, 12 s; the file system is in use 18 of 21 s, so that
    3 s go with the GPU."""
    rows = find_late_hosts(phases([("backward", [[1.0, 5.0]] * 3)]), 21.0, names(2), 1)
    assert rows[0].seconds == pytest.approx(6.0)
    (row,) = rank_rows(rows, [], idle_seconds(busy(18 / 21), 21.0))
    assert row.seconds == pytest.approx(3.0)
    assert row.share == pytest.approx(3 / 21)
    assert idle_seconds(busy(0.9).assign(peak_utilisation=0.5), 21.0) == np.inf


def test_a_batch_that_is_read_late_is_decoded_late():
    """Ranks wait 50 s where the last one decodes. The server is in use for 98 of 100 s, so free
    decoding saves 2 s; the server is waited for 48 s beside its own 4 s."""
    (row,) = find_bounds(busy(0.98), 100.0, {"io": 4.0, "decode": 50.0})
    assert (row.what, row.cause) == ("pfs.open", "io")
    assert row.seconds == pytest.approx(4.0 + 50.0 - 2.0)
    # idle for 60 s: that may all be decoding
    (row,) = find_bounds(busy(0.4), 100.0, {"io": 4.0, "decode": 50.0})
    assert row.seconds == pytest.approx(4.0)


def test_two_coincidences_in_five_waits_of_160_ranks_are_chance():
    """By chance a rank is last twice in five draws in 160 * C(5,2) / 160^2 = 6 % of runs, and draws
    are tied by the loader; three of five are not by chance (160 * C(5,3) / 160^3 = 0.04 %)."""
    own = np.ones((5, 160))
    own[range(5), [67, 67, 5, 136, 93]] = 1.7
    assert find_late_hosts(phases([("io", own)]), 20.0, names(160), 1) == []
    own[2, [5, 67]] = 1.0, 1.7
    (row,) = find_late_hosts(phases([("io", own)]), 20.0, names(160), 1)
    assert row.what == "h67"


@pytest.mark.parametrize(
    ("ranks", "hosts", "expected"),
    [(16, 16, 1), (64, 16, 4), (9, 3, 3), (12, 2, 6), (36, 3, 12), (7, 4, 2), (5, 1, 5),
     (17, 3, 8), (15, 2, 8)],
)  # fmt: skip
def test_ranks_on_each_host(ranks, hosts, expected):
    """Launchers start as many on each host; where the last has fewer, hosts have 2^n GPUs."""
    assert ranks_per_host(ranks, hosts) == expected


@pytest.mark.parametrize(
    ("seconds", "cause", "is_left_out"),
    [(4.0, "allreduce", True), (4.5, "allreduce", False), (4.0, COMPUTING, False)],
)
def test_a_link_explains_a_host_that_is_late_by_twice_as_much_at_most(seconds, cause, is_left_out):
    link = WaitedForRow("leaf.0>spine.0", "link", "allreduce", "slow", 2.0, 0.2)
    server = WaitedForRow("pfs", "server", "allreduce", "busy", 9.0, 0.9)
    late = WaitedForRow("h0001", "host", cause, "late", seconds, seconds / 10)
    faster = replace(link, what="leaf.0>spine.1", seconds=0.5, share=0.05)
    rows = rank_rows([late], [link, faster, server], idle_s=4.25)
    least = min(seconds, 4.25)  # no longer than the server is idle
    expected = [("pfs", 9.0, 0.9), ("h0001", least, least / 10), ("leaf.0>spine.0", 2.0, 0.2)]
    expected.append(("leaf.0>spine.1", 0.5, 0.05))
    assert [(row.what, row.seconds, pytest.approx(row.share)) for row in rows] == [
        row for row in expected if not (is_left_out and row[0] == "h0001")
    ]
    short = replace(late, seconds=0.25, share=0.025)
    assert rank_rows([short], [server]) == [server, short]
